"""A small U-Net with group norm, skip connections and nearest-neighbour upsampling."""

import torch
import torch.nn.functional as F
from torch import nn


class ConvBlock(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, width)

    def forward(self, x):
        x = F.silu(self.norm1(self.conv1(x)))
        return F.silu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1 = ConvBlock(3, width)
        self.down2 = ConvBlock(width, 2 * width)
        self.middle = ConvBlock(2 * width, 2 * width)
        self.up2 = ConvBlock(4 * width, width)
        self.up1 = ConvBlock(2 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, images):
        skip1 = self.down1(images)
        skip2 = self.down2(F.avg_pool2d(skip1, 2))
        x = self.middle(F.avg_pool2d(skip2, 2))
        x = F.interpolate(x, scale_factor=2)
        x = self.up2(torch.cat([x, skip2], dim=1))
        x = F.interpolate(x, scale_factor=2)
        x = self.up1(torch.cat([x, skip1], dim=1))
        return self.out(x)


def build():
    return UNet().eval()


def inputs(batch=2):
    return (torch.randn(batch, 3, 16, 16),)

"""A residual network with batch norm, in both modes: running statistics are state in training."""

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class ResNet(nn.Module):
    def __init__(self, widths=(8, 16), blocks=2, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        layers, channels = [], widths[0]
        for i, width in enumerate(widths):
            for j in range(blocks):
                stride = 2 if i and not j else 1
                layers.append(BasicBlock(channels, width, stride))
                channels = width
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, classes)

    def forward(self, images):
        x = F.relu(self.bn1(self.conv1(images)))
        x = F.max_pool2d(x, 2)
        x = self.layers(x)
        x = x.mean(dim=(2, 3))
        return self.fc(x)


def build():
    model = ResNet()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0.0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def build_train():
    return build().train()


def inputs(batch=4):
    return (torch.randn(batch, 3, 16, 16),)

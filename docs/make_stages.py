"""Writes docs/stages_gpt.html, the gradient of the GPT of `untrace demo` through every stage, and screenshots of it.

python docs/make_stages.py                 the page
python docs/make_stages.py --screenshots   the pictures too: needs playwright, and a `chromium` on the PATH
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import jax

import untrace
from untrace import _locate

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "stages_gpt.html"
# What is done before each picture: (file, light or dark, where the page is opened, stages switched on or off).
PICTURES = (
    ("stages_light.png", "light", "#source:19", ()),
    ("stages_dark.png", "dark", "#source:14", ("jaxpr of grad(loss)", "StableHLO")),
)


def main() -> int:
    gpt = _locate.load_module(str(FOLDER.parent / "examples" / "gpt.py"))
    untrace.stages(jax.grad(gpt.loss), values=True)(*gpt.make_args()).save(PAGE, overwrite=True)
    print(f"{PAGE.name}: {PAGE.stat().st_size:,} bytes")
    if "--screenshots" in sys.argv[1:]:
        take_pictures()
    return 0


def take_pictures() -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        for name, scheme, where, switched in PICTURES:
            tab = browser.new_page(viewport={"width": 1600, "height": 820}, color_scheme=scheme)
            tab.goto(PAGE.as_uri() + where)
            for title in switched:
                tab.get_by_role("button", name=title, exact=True).click()
            tab.wait_for_timeout(300)
            tab.screenshot(path=FOLDER / name)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())

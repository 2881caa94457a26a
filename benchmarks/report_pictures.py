"""Report pictures: what does the page look like in a browser?

    jaxswap demo --planner genetic && python -m benchmarks.report_pictures jaxswap-demo.html

Opens a report in Chromium and writes what is seen to `docs/pictures`: light, dark, on a phone,
the streams, the table of decisions and the front.
"""

import argparse
import pathlib

from benchmarks.browser import Browser, Page, find_chromium

FOLDER = pathlib.Path(__file__).parent.parent / "docs" / "pictures"


def main() -> None:
    """Writes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", help="a report saved as .html")
    path = parser.parse_args().report
    executable = find_chromium()
    if executable is None:
        raise SystemExit("There is no Chromium on this machine: `apt-get install chromium`.")
    with Browser(executable) as browser:
        for name, is_dark in (("light", False), ("dark", True)):
            page = browser.open(path, width=1160, height=1010, is_dark=is_dark)
            _point(page, "memory-plot", 0.42)
            _write(f"report-{name}.png", page)
        page = browser.open(path, width=390, height=844)
        page.resize(390, 1500)
        _write("report-phone.png", page)
        for section, height in (("streams", 445), ("decisions", 620), ("front", 540)):
            page = browser.open(path, width=1160, height=620)
            page.evaluate(f"document.getElementById('{section}').scrollIntoView()")
            if section == "streams":
                _point(page, "streams-plot", 0.3)
            page.resize(1160, height)
            _write(f"report-{section}.png", page)


def _point(page: Page, element: str, share: float) -> None:
    box = page.evaluate(
        f"(() => {{ const r = document.getElementById('{element}').getBoundingClientRect(); "
        "return [r.left, r.top, r.width, r.height]; })()"
    )
    page.mouse("mouseMoved", box[0] + share * box[2], box[1] + box[3] / 2)


def _write(name: str, page: Page) -> None:
    assert not page.errors
    data = page.screenshot()
    (FOLDER / name).write_bytes(data)
    print(f"{name:24} {len(data) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()

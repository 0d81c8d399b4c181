"""Every link of the built pages resolves: python docs/check_links.py docs/_build/html.

Files and anchors of links, images, scripts and styles inside the site must exist, and nothing that a browser loads by
itself may lie elsewhere. Links to other sites are not followed.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# what a browser fetches without being asked
LOADED = {("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("video", "src"), ("object", "data")}
STYLE_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)['\"]?\s*\)|@import\s+['\"]([^'\"]+)['\"]")


class Page(HTMLParser):
    """Anchors of a page, and what it refers to."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loads = {"", "top"}, [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Collect ids, and targets of href and src."""
        attrs = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := attrs.get(name)))
        relations = (attrs.get("rel") or "").split()
        for name in ("href", "src", "data"):
            target = attrs.get(name)
            if target is None:
                continue
            fetched = (tag, name) in LOADED or (tag == "link" and {"stylesheet", "icon", "preload"} & set(relations))
            (self.loads if fetched else self.links).append(target)


def inside(root, page, target):
    """The file and the anchor that a link of a page means, or None if it leads elsewhere."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    path = unquote(parts.path)
    file = page if not path else (root / path.lstrip("/") if path.startswith("/") else page.parent / path)
    file = file.resolve()
    return (file / "index.html" if file.is_dir() else file), unquote(parts.fragment)


def check(root):
    """What is wrong, one line each."""
    root = Path(root).resolve()
    found = (path for path in sorted(root.rglob("*.html")) if "_static" not in path.relative_to(root).parts)
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in found}
    wrong = []
    for path, page in pages.items():
        here = path.relative_to(root)
        for target in page.loads + page.links:
            place = inside(root, path, target)
            if place is None:
                if target in page.loads and not target.startswith("data:"):
                    wrong.append(f"{here}: loads {target} from elsewhere")
                continue
            file, anchor = place
            if not file.exists():
                wrong.append(f"{here}: no file for {target}")
            elif anchor and file in pages and anchor not in pages[file].anchors:
                wrong.append(f"{here}: no anchor for {target}")
    for path in sorted(root.rglob("*.css")):
        for target in STYLE_URL.findall(path.read_text(encoding="utf-8")):
            target = target[0] or target[1]
            if target.startswith(("data:", "#")):
                continue
            place = inside(root, path, target)
            if place is None or not place[0].exists():
                wrong.append(f"{path.relative_to(root)}: no file for {target}")
    return len(pages), wrong


def main():
    """Print what is wrong; exit with 1 if anything is."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    n_pages, wrong = check(sys.argv[1])
    print("\n".join([*wrong, f"{n_pages} pages, {len(wrong)} wrong links"]))
    sys.exit(bool(wrong) or not n_pages)


if __name__ == "__main__":
    main()

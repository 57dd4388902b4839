"""The reference of the public headers, as HTML and XML below build/docs: python -m tools.docs.

Fails on every warning of Doxygen, such as a comment that names a parameter or refers to a name that
is not there, and on a public type or function that has no comment. Needs Doxygen.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

from tools import build
from tools.build import ROOT, Failed

OUTPUT = Path("build/docs")


def has_comment(element: ElementTree.Element) -> bool:
    texts = (element.find(f"{kind}description") for kind in ("brief", "detailed"))
    return any(text is not None and "".join(text.itertext()).strip() for text in texts)


def without_comment(xml: Path) -> list[str]:
    """Types and functions outside of classes; of several overloads one must have a comment."""
    commented: dict[str, bool] = {}
    for entry in ElementTree.parse(xml / "index.xml").getroot().iter("compound"):
        kind = entry.get("kind")
        if kind not in ("struct", "class", "file", "namespace"):
            continue
        (compound,) = ElementTree.parse(xml / f"{entry.get('refid')}.xml").getroot()
        name = compound.findtext("compoundname")
        if kind in ("struct", "class"):
            commented[name] = has_comment(compound)
            continue
        for member in compound.iter("memberdef"):
            if member.get("kind") == "function":
                function = member.findtext("qualifiedname") or member.findtext("name")
                commented[function] = commented.get(function, False) or has_comment(member)
    if not commented:
        return ["no public name was found"]
    return sorted(name for name, found in commented.items() if not found)


def run(root: Path = ROOT) -> None:
    """Raises Failed with Doxygen's warnings, or with the names that have no comment."""
    (root / OUTPUT).mkdir(parents=True, exist_ok=True)
    build.run(["doxygen", "docs/Doxyfile"], root / "build" / "logs" / "docs.log", root)
    names = without_comment(root / OUTPUT / "xml")
    if names:
        raise Failed(f"public names without a comment: {', '.join(names)}")


def main() -> int:
    try:
        run()
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f"{OUTPUT}/html/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a centre says about its page: a small YAML file."""

from collections.abc import Mapping
from pathlib import Path

from sbatchgen.errors import DocumentError, did_you_mean
from sbatchgen.inputs.document import read_document
from sbatchgen.keys import described, record, required
from sbatchgen.units import Text

FILES = Path(__file__).parent / "files"


@record
class Link:
    """A link at the top of the page."""

    text: Text = required("What it says.")
    url: Text = required("Where it leads.")


@record
class Site:
    """The page of a centre."""

    title: Text | None = described("Name of the centre.")
    logo: Text | None = described("Picture, a file beside this one: .svg or .png.")
    language: Text = described("Language of the texts, for screen readers.", make=lambda: Text("en"))
    links: tuple[Link, ...] = described("Links at the top.", ())
    strings: Mapping[Text, Text] = described("Texts of the page that are replaced, by name.", make=dict)
    code: Text | None = described(
        "Folder at the centre that holds `training`, for jobs of the bundled trainer."
    )


def strings_of(site: Site, file: Path | None) -> dict[str, str]:
    """Return the texts of the page, with the texts of a site; raises DocumentError for unknown ones."""
    import yaml

    texts: dict[str, str] = yaml.safe_load((FILES / "strings.yaml").read_text())
    for name in site.strings:
        if name not in texts:
            fix = did_you_mean(name, texts)
            raise DocumentError.of(f"the page has no text '{name}'", at=f"{file}: strings", fix=fix)
    return texts | {str(name): str(text) for name, text in site.strings.items()}


def read_site(file: Path | None) -> Site:
    """Return what a file says; raises DocumentError if it can't be read, or its logo is not there."""
    site = read_document(file, Site).value if file else Site()
    if site.logo and file and not (file.parent / site.logo).is_file():
        raise DocumentError.of(f"there is no logo {file.parent / site.logo}", at=f"{file}: logo")
    for link in site.links:
        if not link.url.startswith(("https://", "http://", "/", "./", "../", "mailto:")):
            fix = "write https://..., or a path"
            raise DocumentError.of(f"'{link.url}' is not an address", at=f"{file}: links", fix=fix)
    return site

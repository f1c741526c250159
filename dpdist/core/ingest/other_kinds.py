"""Files that are not read as they are, by their first bytes or their suffix, and what to type.

FILE and NEW stand for paths, NAME for a name within the file.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from pathlib import PurePath

START = 2048
"""Bytes that tell the kind of a file."""
_GZIP, _ZIP, _HDF = b"\x1f\x8b", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"
_CONTAINERS = (_GZIP, _ZIP, _HDF, b"BZh", b"\xfd7zXZ", b"\xd0\xcf\x11\xe0")
"""First bytes of kinds that contain others, which the suffix tells."""
_LZMA = "in Python: pathlib.Path(NEW).write_bytes(lzma.open(FILE).read())"
_UNZIP = "in Python: zipfile.ZipFile(FILE).extractall(NEW), and ingest the folder NEW"


def _parquet(reading: str) -> str:
    return f"Save it as .parquet; in Python: {reading}.to_parquet(NEW, index=False)"


def _packed(codec: str) -> str:
    stream = f"pyarrow.input_stream(FILE, compression={codec!r})"
    return f"Unpack it; in Python: pathlib.Path(NEW).write_bytes({stream}.read())"


_EXCEL = "Save it as .csv (pip install openpyxl); in Python: pandas.read_excel(FILE).to_csv(NEW, index=False)"
_HDF5 = (
    "Rename it to .h5ad if AnnData wrote it, or to .nc if it is NetCDF. Otherwise save it as .npy or .parquet; in "
    "Python: numpy.save(NEW, h5py.File(FILE)['NAME'][:]), or, if pandas wrote it, "
    "pandas.read_hdf(FILE).to_parquet(NEW, index=False)"
)
_STREAM = "Convert it; in Python: pyarrow.feather.write_feather(pyarrow.ipc.open_stream(FILE).read_all(), NEW)"
_SPSS = _parquet("pandas.read_spss(FILE)")
_STATA = _parquet("pandas.read_stata(FILE)")
_ORC = _parquet("pandas.read_orc(FILE)")
_AVRO = _parquet("pandas.DataFrame(fastavro.reader(open(FILE, 'rb')))")
_SQL = _parquet("pandas.read_sql('SELECT * FROM NAME', sqlite3.connect(FILE))")
_PICKLE = (
    "Loading it runs any code that it contains. If you trust its author, save it as .parquet; in Python: "
    "pandas.read_pickle(FILE).to_parquet(NEW, index=False)"
)
_VCF = (
    "Convert it to VCF Zarr (pip install 'bio2zarr[vcf]'), and ingest that: vcf2zarr convert FILE NEW.zarr. If it has "
    "several chromosomes, index it first: bcftools view -O z -o X.vcf.gz FILE, bcftools index X.vcf.gz"
)
_R = "Save it as .csv; in R: write.csv(readRDS(FILE), NEW, row.names = FALSE)"
_PAGE = (
    "Download the file itself, with your credentials. If the page contains the table, in Python: "
    "pandas.read_html(FILE)[0].to_csv(NEW, index=False)"
)
_MATLAB = "numpy.save(NEW, h5py.File(FILE)['NAME'][:].T)"
_LINES = _parquet("pandas.read_json(FILE, lines=True)")
_JSON = _parquet("pandas.read_json(FILE)")
_ARCHIVE = "Unpack it into a folder, and ingest that: mkdir NEW && tar -xf FILE -C NEW"
_POINTER = "a pointer to the file, not the file itself"
_CONTENTS: tuple[tuple[bytes, str, tuple[str, ...], str], ...] = (
    (b"version https://git-lfs", _POINTER, (), "Fetch the file: git lfs pull"),
    (b"/annex/objects/", _POINTER, (), "Fetch the file: git annex get FILE"),
    (_GZIP, "compressed by gzip", (".csv.gz",), _packed("gzip")),
    (b"BZh", "compressed by bzip2", (), _packed("bz2")),
    (b"\xfd7zXZ\0", "compressed by xz", (), f"Unpack it; {_LZMA}"),
    (b"\x28\xb5\x2f\xfd", "compressed by Zstandard", (), _packed("zstd")),
    (b"\x04\x22\x4d\x18", "compressed by LZ4", (), _packed("lz4")),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", (), "Unpack it into a folder, and ingest that: 7z x -oNEW FILE"),
    (_ZIP, "a zip archive", (".npz",), f"Unpack it; {_UNZIP}"),
    (b"PAR1", "a Parquet file", (".parquet",), ".parquet"),
    (b"ARROW1", "an Arrow file", (".arrow", ".feather"), ".arrow"),
    (b"\xff\xff\xff\xff", "an Arrow stream", (".arrow", ".feather"), _STREAM),
    (_HDF, "an HDF5 file", (".h5ad", ".nc"), _HDF5),
    (b"CDF\x01", "a NetCDF file", (".nc",), ".nc"),
    (b"CDF\x02", "a NetCDF file", (".nc",), ".nc"),
    (b"CDF\x05", "a NetCDF file", (".nc",), ".nc"),
    (b"\x93NUMPY", "an array of NumPy", (".npy",), ".npy"),
    (b"##fileformat=VCF", "a VCF file", (), _VCF),
    (b"\xd0\xcf\x11\xe0", "an Excel file", (), _EXCEL),
    (b"%PDF", "a PDF", (), "Export its table as .csv"),
    (b"SQLite format 3\0", "a database of SQLite", (), _SQL),
    (b"<stata_dta>", "a file of Stata", (), _STATA),
    (b"$FL", "a file of SPSS", (), _SPSS),
    (b"ORC", "an ORC file", (), _ORC),
    (b"Obj\x01", "an Avro file", (), _AVRO),
    (b"MATLAB 7.3", "a file of MATLAB 7.3", (), "Save its matrix as .npy; in Python: " + _MATLAB),
)
"""First bytes of a file, what it is, under which suffixes it is read, and the cure: a suffix if it is read as it is."""
_SUFFIXES = {
    (".tsv", ".tab", ".tsv.gz", ".tsv.bz2", ".tsv.xz"): (
        r"Save it as .csv; in Python: pandas.read_csv(FILE, sep='\t').to_csv(NEW, index=False)"
    ),
    (".txt", ".dat", ".asc", ".data", ".psv", ".txt.gz"): (
        "Rename it to .csv if commas separate its cells. Otherwise save it as .csv; in Python: "
        "pandas.read_csv(FILE, sep=None, engine='python').to_csv(NEW, index=False)"
    ),
    (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"): _EXCEL,
    (".pq", ".parq"): ".parquet",
    (".ipc",): ".arrow",
    (".ftr",): ".feather",
    (".arrows",): _STREAM,
    (".nc3", ".nc4", ".cdf", ".netcdf"): ".nc",
    (".h5", ".hdf5", ".hdf"): _HDF5,
    (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"): _LINES,
    (".json", ".json.gz"): _JSON,
    (".xml",): _parquet("pandas.read_xml(FILE)"),
    (".orc",): _ORC,
    (".avro",): _AVRO,
    (".sas7bdat",): _parquet("pandas.read_sas(FILE, encoding='infer')"),
    (".xpt",): _parquet("pandas.read_sas(FILE, encoding='latin-1')"),
    (".dta",): _STATA,
    (".sav", ".zsav", ".por"): _SPSS,
    (".mat",): "Save its matrix as .npy; in Python: numpy.save(NEW, scipy.io.loadmat(FILE)['NAME'])",
    (".mtx", ".mtx.gz"): (
        "Save it as .npy, with a person per row; in Python: "
        "numpy.save(NEW, scipy.sparse.csr_array(scipy.io.mmread(FILE)).toarray()), with .T before the last bracket if "
        "a person is a column, as in files of 10x"
    ),
    (".svmlight", ".libsvm"): (
        "Save it as .npy; in Python: numpy.save(NEW, sklearn.datasets.load_svmlight_file(FILE)[0].toarray())"
    ),
    (".arff",): _parquet("pandas.DataFrame(scipy.io.arff.loadarff(FILE)[0])"),
    (".fits", ".fit"): (_parquet("astropy.table.Table.read(FILE).to_pandas()")),
    (".vcf", ".vcf.gz", ".vcf.bgz", ".bcf"): _VCF,
    (".bed", ".bim", ".fam"): (
        "Convert the genotypes to VCF Zarr (pip install bio2zarr), and ingest that: plink2zarr convert PREFIX NEW.zarr"
    ),
    (".pgen", ".pvar", ".psam"): f"Save it as VCF: plink2 --pfile PREFIX --export vcf --out NEW. {_VCF}",
    (".bgen",): f"Save it as VCF: plink2 --bgen FILE ref-first --export vcf --out NEW. {_VCF}",
    (".ped", ".map"): f"Save it as VCF: plink2 --pedmap PREFIX --export vcf --out NEW. {_VCF}",
    (".loom",): "Save it as .h5ad; in Python: anndata.io.read_loom(FILE).write_h5ad(NEW)",
    (".pkl", ".pickle"): _PICKLE,
    (".pt", ".pth"): "Save its tensor as .npy; in Python: numpy.save(NEW, torch.load(FILE).numpy())",
    (".safetensors",): "Save its array as .npy; in Python: numpy.save(NEW, safetensors.numpy.load_file(FILE)['NAME'])",
    (".rds",): _R,
    (".rda", ".rdata"): _R.replace("readRDS(FILE)", "get(load(FILE))"),
    (".sqlite", ".sqlite3", ".db"): _SQL,
    (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"): _ARCHIVE,
}
"""Suffixes, and the cure: a suffix if it is read as it is."""


_NUMBERED = "t.rename_columns([f'{name}.{place}' for place, name in enumerate(t.column_names)])"
_RENAMING = {
    (".csv", ".csv.gz"): "pandas.read_csv(FILE).to_csv(NEW, index=False)",
    (".parquet",): f"t = pyarrow.parquet.ParquetFile(FILE).read(); pyarrow.parquet.write_table({_NUMBERED}, NEW)",
    (".arrow", ".feather"): (
        f"t = pyarrow.ipc.open_file(FILE).read_all(); pyarrow.feather.write_feather({_NUMBERED}, NEW)"
    ),
    (".h5ad",): "t = anndata.read_h5ad(FILE); t.var_names_make_unique(); t.write_h5ad(NEW)",
}
NESTED = ("list<", "large_list<", "fixed_size_list<", "struct<")
"""Begins of the types of columns, as Arrow spells them, whose cells hold several values."""


def renaming(path: object) -> str:
    """Return how to give columns of the same name other ones."""
    cure = next((cure for ends, cure in _RENAMING.items() if str(path).lower().endswith(ends)), None)
    return f"Rename them; in Python: {cure}." if cure else "Rename them."


def dividing(path: object, kinds: Mapping[str, str]) -> str:
    """Return how to divide columns whose cells hold several numbers, by their types as Arrow spells them."""
    opened = "pyarrow.ipc.open_file(FILE).read_all()"
    if str(path).lower().endswith(".parquet"):
        opened = "pyarrow.parquet.read_table(FILE)"
    if all(kind.startswith("struct<") for kind in kinds.values()):
        flat = f"pyarrow.parquet.write_table({opened}.flatten(), NEW)"
        return f"Divide the records, and save it as .parquet; in Python: {flat}."
    name = next(name for name, kind in kinds.items() if not kind.startswith("struct<"))
    parts = f"pandas.DataFrame(t[{name!r}].tolist()).add_prefix({name + '.'!r})"
    return (
        "Divide the vectors, if all have one length, and save it as .parquet; in Python: "
        f"t = {opened}.to_pandas(ignore_metadata=True); "
        f"t.drop(columns={name!r}).join({parts}).to_parquet(NEW, index=False)."
    )


def refusal(path: PurePath, start: bytes, suffix: str, kinds: Iterable[str]) -> str | None:
    """Return what a file is, and what to type; None if it seems to be what its suffix says.

    The suffix is one of the kinds that are read, or empty.
    """
    name = path.name.lower()
    known = max(((end, cure) for ends, cure in _SUFFIXES.items() for end in ends if name.endswith(end)), default=None)
    found = _binary(path, start, suffix) or _wide(start, suffix) or _text(path, _text_of(start), suffix)
    if suffix or (found and not (known and start.startswith(_CONTAINERS))):
        return found
    cure = _said(path, *known) if known else "Move it elsewhere if it is not a table."
    return f"not of a supported kind ({', '.join(kinds)}). {cure}"


def _binary(path: PurePath, start: bytes, suffix: str) -> str | None:
    for begin, noun, suffixes, cure in _CONTENTS:
        if start.startswith(begin) and suffix not in suffixes:
            if begin == _ZIP and (b"[Content_Types].xml" in start or b"opendocument.spreadsheet" in start):
                return f"a spreadsheet. {_EXCEL}."
            if begin == _GZIP and suffix == ".csv":
                return f"{noun}. Rename it to {path.name}.gz."
            return f"{noun}. {_said(path, suffix, cure)}"
    return None


def _wide(start: bytes, suffix: str) -> str | None:
    code = _code(start) if suffix in {"", ".csv"} else None
    typed = f"pathlib.Path(NEW).write_text(pathlib.Path(FILE).read_text({code!r}), 'utf-8')"
    return code and f"text in {code}. Save it in UTF-8; in Python: {typed}."


def _text(path: PurePath, text: str | None, suffix: str) -> str | None:
    begin = (text or "").lstrip()
    if begin.lower().startswith(("<!doctype html", "<html")):
        return f"a web page, perhaps a log-in. {_PAGE}."
    if not suffix or suffix == ".zarr" or not text:
        return None
    if begin.startswith(('{"', '[{"')):
        return f"JSON. {_LINES if chr(10) + '{' in begin else _JSON}."
    if suffix.endswith(".gz"):
        return f"text that is not compressed. {_said(path, suffix, suffix.removesuffix('.gz'))}"
    if suffix != ".csv":
        return f"text. {_said(path, suffix, '.csv')[:-1]} if commas separate its cells."
    return None


def _code(start: bytes) -> str | None:
    """Return the encoding of text whose letters have two bytes."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for code, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])):
        if zeros.count(0) > 0.8 * len(zeros) and _plain(start[: len(start) & ~1].decode(code, "replace")):
            return code
    return None


def _said(path: PurePath, suffix: str, cure: str) -> str:
    if not cure.startswith("."):
        return f"{cure}."
    stem = path.name[: -len(suffix)] if suffix else path.stem
    return f"Rename it to {stem}{cure}."


def _text_of(start: bytes) -> str | None:
    """Return the text of the first bytes of a file; None if they are no text in UTF-8."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(start)
    except UnicodeDecodeError:
        return None
    return text if _plain(text) else None


def _plain(text: str) -> bool:
    return text != "" and all(letter.isprintable() or letter in "\t\r\n" for letter in text)

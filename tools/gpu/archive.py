"""The archive that lets a machine without a network run Stagecoach's programs, or build them.

It has the libraries of Debian's packages, and programs built beforehand. It is unpacked anywhere on
a machine with a C library at least as new as the one that MANIFEST names. The libraries are the
shared ones that every other test runs with. Packed programs find them by LD_LIBRARY_PATH; programs
built there find them by the run path that options_for() has the linker write into them.
"""

import gzip
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile

MAX_BYTES = 50_000_000

# In tools/packages.txt, but to be there already, or not needed to build and test. Without iproute2
# the tests that make networks of their own are skipped.
_NOT_PACKED = {"g++", "cmake", "ninja-build", "ccache", "pkg-config", "python3", "iproute2"}
# Needed by those in the archive, and part of any system with g++; or of no use to a build: accounts,
# sources, development files of libraries that only other libraries use.
_LEFT_OUT = {
    "adduser", "gcc-12-base", "googletest", "libc6", "libc6-dev", "libgcc-s1", "libgomp1",
    "libhiredis-dev", "libibverbs-dev", "libstdc++6",
}
# pkg-config comes along, since CMake's find_package(PkgConfig) wants it.
_ADDED = ["pkgconf-bin"]
# Libraries that the system has (see _LEFT_OUT): all that are part of the C library, and g++'s.
_OF_SYSTEM = re.compile(
    r"(ld-linux-x86-64|lib(BrokenLocale|anl|c|c_malloc_debug|dl|m|mvec|nsl|pthread|resolv|rt|"
    r"thread_db|util|nss_(compat|db|dns|files|hesiod)|stdc\+\+|gcc_s|gomp))\.so\.\d+")
# Libraries that the GPU's machine has, in the CUDA toolkit or as Python's packages.
_OF_CUDA = re.compile(r"lib(cublasLt|cudart|cudnn|cupti|nccl)\.so\.\d+")

_ARCHITECTURE = "x86_64-linux-gnu"


class ArchiveError(Exception):
    """Why there is no archive, in one line."""


def wanted_packages(packages_txt):
    """The packages that the text of tools/packages.txt names and the archive needs."""
    lines = (line.split("#")[0].strip() for line in packages_txt.splitlines())
    return [name for name in lines
            if name and not name.startswith("ci:") and name not in _NOT_PACKED]


def parse_depends(text):
    """What a package needs, from the output of `apt-cache depends`: the first of alternatives."""
    needed, is_alternative = [], False
    for line in text.splitlines():
        match = re.match(r"\s+(\|?)(?:Pre)?Depends: (\S+)", line)
        if not match:
            continue
        if not is_alternative and not match.group(2).startswith("<"):
            needed.append(match.group(2))
        is_alternative = match.group(1) == "|"
    return needed


def with_needs(names):
    """The packages and all that they need, without what every system has."""
    found, new = set(), set(names) - _LEFT_OUT
    while new:
        found |= new
        # One call for all, since each reads the lists of all packages.
        new = set(parse_depends(_output(["apt-cache", "depends", *sorted(new)]))) - found - _LEFT_OUT
    return sorted(found)


def packages_of(packages_txt):
    """All packages that go into the archive."""
    return with_needs(wanted_packages(packages_txt) + _ADDED)


def check_tools():
    """ArchiveError unless this system has the programs that make an archive."""
    for tool in ("apt-get", "apt-cache", "dpkg-deb", "readelf", "strip", "xz"):
        if shutil.which(tool) is None:
            raise ArchiveError(f"there is no {tool} here: pack on a Debian system")


def pack(packages_txt, programs, commit, archive, say=print):
    """Writes the archive, with the `programs` (see copy_programs) built from `commit`.

    Needs a Debian system with its package lists, and the network.
    """
    check_tools()
    packages = packages_of(packages_txt)
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = pathlib.Path(scratch_name)
        # apt downloads as a user of its own, which needs access.
        scratch.chmod(0o755)
        say(f"downloading {len(packages)} packages")
        _run(["apt-get", "download", "-q", *packages], cwd=scratch)
        unpacked = scratch / "unpacked"
        versions = []
        for package in sorted(scratch.glob("*.deb")):
            _run(["dpkg-deb", "--extract", package, unpacked])
            versions.append(_output(["dpkg-deb", "--show", package]).split())
        prefix = scratch / "prefix"
        make_prefix(unpacked, prefix)
        copy_programs(programs, prefix / "programs")
        oldest = check_libraries([*prefix.glob("lib/**/*.so*"),
                                  *(prefix / "programs" / inside for inside in programs)])
        manifest = [f"needs: glibc {oldest} or later, {_ARCHITECTURE}", f"programs: {commit}"]
        manifest += [f"{name} {version}" for name, version in versions]
        (prefix / "MANIFEST").write_text("\n".join(manifest) + "\n")
        say("compressing")
        archive.parent.mkdir(parents=True, exist_ok=True)
        part = archive.with_name(archive.name + ".part")
        # The manifest first: whoever reads it alone would have to decompress all that comes before it.
        inside = ["./MANIFEST", *sorted(f"./{path.name}" for path in prefix.iterdir()
                                        if path.name != "MANIFEST")]
        _run(["tar", "--owner=0", "--group=0", "-I", "xz -9 -T2", "-cf", part, "-C", prefix, *inside])
        size = part.stat().st_size
        if size > MAX_BYTES:
            part.unlink()
            raise ArchiveError(f"the archive would have {size:,} bytes; at most {MAX_BYTES:,}")
        part.replace(archive)
    say(f"{archive}: {size / 1e6:.1f} MB; {manifest[0]}")


def make_prefix(unpacked, prefix):
    """Turns unpacked packages into a folder of libraries that works wherever it lies."""
    shutil.move(unpacked / "usr", prefix)
    if (unpacked / "lib").is_dir():  # the same folder on a merged system
        shutil.copytree(unpacked / "lib", prefix / "lib", symlinks=True, dirs_exist_ok=True)
    for unused in ("src", "share/doc", "share/man", "share/lintian", "share/doc-base", "share/bug",
                   "share/pkgconfig", f"lib/{_ARCHITECTURE}/cmake/dnnl"):
        shutil.rmtree(prefix / unused, ignore_errors=True)
    _make_links_relative(prefix)
    for static in prefix.glob("lib/**/*.a"):
        if static.with_suffix(".so").exists():
            static.unlink()
    for script in prefix.glob("share/cmake/Gloo/*.cmake"):
        _substitute(script, '"/usr/', '"${_IMPORT_PREFIX}/')
    for description in prefix.glob(f"lib/{_ARCHITECTURE}/pkgconfig/*.pc"):
        _substitute(description, "=/usr/", "=${prefix}/")
        _substitute(description, "prefix=/usr\n", "prefix=${pcfiledir}/../../..\n")
    _unzip_data(prefix / "share/datasets")
    _write_pkg_config(prefix / "bin")


def copy_programs(programs, folder):
    """Copies files into `folder`, stripped. `programs` has the path of each there, and its source."""
    for inside, source in programs.items():
        target = folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        _run(["strip", "-o", target, source])


def _make_links_relative(prefix):
    for link in prefix.glob("lib/**/*"):
        if not link.is_symlink():
            continue
        target = os.readlink(link)
        if target.startswith("/"):
            inside = prefix / target.lstrip("/").removeprefix("usr/")
            link.unlink()
            link.symlink_to(os.path.relpath(inside, link.parent))
        if not link.exists():
            link.unlink()


def _substitute(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def _unzip_data(folder):
    # Together with the rest they take a quarter less.
    for zipped in folder.rglob("*.gz"):
        with gzip.open(zipped) as source, open(zipped.with_suffix(""), "wb") as target:
            shutil.copyfileobj(source, target)
        zipped.unlink()


def _write_pkg_config(folder):
    script = folder / "pkg-config"
    script.unlink(missing_ok=True)
    script.write_text(f"""#!/bin/sh
prefix=$(cd "$(dirname "$0")/.." && pwd)
LD_LIBRARY_PATH=$prefix/lib/{_ARCHITECTURE} exec "$prefix/bin/pkgconf" "$@"
""")
    script.chmod(0o755)


def check_libraries(files):
    """The oldest C library that the libraries and programs run with, as "2.34".

    ArchiveError if one needs a library that is none of them, nor part of every system with CUDA.
    """
    here = {file.name for file in files}
    oldest = (2, 0)
    for file in files:
        if not file.is_file() or file.is_symlink() or not _is_elf(file):
            continue
        text = _output(["readelf", "--wide", "--dynamic", "--version-info", file])
        for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
            if needed not in here and not is_of_system(needed) and not _OF_CUDA.fullmatch(needed):
                raise ArchiveError(f"{file.name} needs {needed}, which no package of the archive has")
        versions = re.findall(r"GLIBC_(\d+)\.(\d+)", text)
        oldest = max([oldest] + [(int(major), int(minor)) for major, minor in versions])
    return f"{oldest[0]}.{oldest[1]}"


def _is_elf(file):
    with open(file, "rb") as opened:
        return opened.read(4) == b"\x7fELF"


def is_of_system(soname):
    """Whether a library is part of every system with g++."""
    return _OF_SYSTEM.fullmatch(soname) is not None


def needed_glibc(manifest):
    """The C library that the text of a MANIFEST asks for, as (2, 34)."""
    match = re.match(r"needs: glibc (\d+)\.(\d+) or later", manifest)
    if not match:
        raise ArchiveError("its MANIFEST does not say which C library it needs")
    return int(match.group(1)), int(match.group(2))


def check_system(manifest, libc):
    """ArchiveError unless the C library, as platform.libc_ver() names it, is new enough."""
    needed = needed_glibc(manifest)
    name, version = libc
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if name != "glibc" or found < needed:
        raise ArchiveError(f"its libraries need glibc {needed[0]}.{needed[1]} or later; here is "
                           f"{name or 'no glibc'} {version}".rstrip())


def unpack(archive, prefix):
    """Unpacks the archive, unless that has been done since it was made.

    ArchiveError if its libraries do not run with the C library of this system.
    """
    stamp = prefix / "unpacked"
    made = str(archive.stat().st_mtime_ns)
    if stamp.exists() and stamp.read_text() == made:
        return
    with tarfile.open(archive) as tar:
        check_system(tar.extractfile("./MANIFEST").read().decode(), platform.libc_ver())
        shutil.rmtree(prefix, ignore_errors=True)
        prefix.mkdir(parents=True)
        # Older Pythons do not know the argument.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(prefix, **safe)
    stamp.write_text(made)


def programs_commit(prefix):
    """The commit from which the programs of an unpacked archive were built."""
    match = re.search(r"(?m)^programs: (.+)$", (prefix / "MANIFEST").read_text())
    if not match:
        raise ArchiveError("it has no programs")
    return match.group(1)


def library_folders(prefix):
    """Where the libraries of an unpacked archive are."""
    return [prefix / "lib" / _ARCHITECTURE, prefix / "lib"]


def options_for(prefix):
    """Arguments of CMake to build with the libraries in `prefix`."""
    library = prefix / "lib" / _ARCHITECTURE
    options = [
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_LIBRARY_PATH={library}",
        f"-DPKG_CONFIG_EXECUTABLE={prefix}/bin/pkg-config",
        # A run path of the old kind also applies to what the libraries need.
        f"-DCMAKE_BUILD_RPATH={library};{prefix}/lib",
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags",
        "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,--disable-new-dtags",
    ]
    # Not every system's CMake looks into a folder named for the architecture.
    folders = sorted((library / "cmake").iterdir()) + sorted((prefix / "share/cmake").iterdir())
    return options + [f"-D{folder.name}_DIR={folder}" for folder in folders]


def environment_for(prefix):
    """Variables that configuring and building with `prefix` need."""
    return {"PKG_CONFIG_PATH": f"{prefix}/lib/{_ARCHITECTURE}/pkgconfig"}


def _run(command, **options):
    try:
        result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, **options)
    except OSError as error:
        raise ArchiveError(f"{command[0]}: {error.strerror}") from None
    if result.returncode != 0:
        raise ArchiveError(f"{command[0]} {command[1]} failed: {result.stdout.strip()[-500:]}")
    return result.stdout


def _output(command):
    return _run(command, env={**os.environ, "LC_ALL": "C"})


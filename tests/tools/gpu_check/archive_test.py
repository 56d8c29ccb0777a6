#!/usr/bin/env python3
"""The archive that tools/gpu_check makes and uses."""

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import unittest

sys.dont_write_bytecode = True

from folder import ROOT, Folder
from gpu import archive


MANIFEST = "needs: glibc 2.2 or later, x86_64-linux-gnu\n"


def archive_of(folder, target):
    with tarfile.open(target, "w:xz") as tar:
        tar.add(folder, arcname=".")


class ArchiveTest(Folder):
    def test_wants_libraries_and_data_but_no_tools(self):
        text = "# To build\ng++\ncmake\n\nlibabsl-dev\nci: clang-format\ndataset-fashion-mnist # data\n"
        self.assertEqual(archive.wanted_packages(text), ["libabsl-dev", "dataset-fashion-mnist"])

    def test_takes_the_first_of_alternative_packages_and_no_virtual_one(self):
        text = "liba\n  Depends: libb\n |Depends: libc\n  Depends: libd\n  Depends: <libe>\n" \
               "  Recommends: libf\n  PreDepends: libg\n"
        self.assertEqual(archive.parse_depends(text), ["libb", "libc", "libg"])

    def test_makes_a_prefix_that_can_lie_anywhere(self):
        library = "unpacked/usr/lib/x86_64-linux-gnu/"
        self.write("unpacked/lib/x86_64-linux-gnu/libz.so.1.2", "")
        self.write(library + "liba.so.1", "")
        self.write(library + "liba.a", "")
        self.write(library + "libonly.a", "")
        for link, target in {"liba.so": "liba.so.1", "libgone.so": "libgone.so.1",
                             "libz.so": "/lib/x86_64-linux-gnu/libz.so.1.2"}.items():
            (self.folder / library / link).symlink_to(target)
        self.write(library + "pkgconfig/a.pc", "prefix=/usr\nlibdir=${prefix}/lib\n")
        self.write("unpacked/usr/share/cmake/Gloo/T.cmake", 'set(L "/usr/lib/libgloo.so")\n')
        self.write("unpacked/usr/share/doc/a/copyright", "")
        self.write("unpacked/usr/bin/pkgconf", "#!/bin/sh\necho $LD_LIBRARY_PATH $*\n", 0o755)
        data = self.write("unpacked/usr/share/datasets/d/x.gz", "")
        data.write_bytes(gzip.compress(b"pixels"))

        archive.make_prefix(self.folder / "unpacked", self.folder / "first")
        prefix = self.folder / "moved"
        (self.folder / "first").rename(prefix)

        there = prefix / "lib/x86_64-linux-gnu"
        self.assertEqual(sorted(file.name for file in there.glob("lib*")),
                         ["liba.so", "liba.so.1", "libonly.a", "libz.so", "libz.so.1.2"])
        self.assertTrue((there / "libz.so").resolve().is_relative_to(prefix.resolve()))
        self.assertTrue((there / "pkgconfig/a.pc").read_text().startswith("prefix=${pcfiledir}/"))
        self.assertEqual((prefix / "share/cmake/Gloo/T.cmake").read_text(),
                         'set(L "${_IMPORT_PREFIX}/lib/libgloo.so")\n')
        self.assertFalse((prefix / "share/doc").exists())
        self.assertEqual((prefix / "share/datasets/d/x").read_bytes(), b"pixels")
        self.assertEqual(subprocess.check_output([prefix / "bin/pkg-config", "--libs"], text=True),
                         f"{there} --libs\n")

    def test_refuses_a_library_whose_needs_are_not_there(self):
        source = self.write("a.cc", "int a() { return 1; }\n")
        (self.folder / "lib").mkdir()
        subprocess.check_call(["g++", "-shared", "-fPIC", source, "-Wl,-soname,liba.so.1", "-o",
                               self.folder / "liba.so.1"])
        subprocess.check_call(["g++", "-shared", "-fPIC", "-Wl,--no-as-needed", source,
                               self.folder / "liba.so.1", "-o", self.folder / "lib/libb.so"])
        files = [self.folder / "lib/libb.so"]
        with self.assertRaisesRegex(archive.ArchiveError, "libb.so needs liba.so.1"):
            archive.check_libraries(files)
        files.append(self.folder / "liba.so.1")
        self.assertRegex(archive.check_libraries(files), r"^2\.\d+$")

    @unittest.skipIf(shutil.which("apt-cache") is None, "there is no apt-cache")
    def test_has_all_that_this_systems_packages_need(self):
        files = []
        for package in archive.packages_of((ROOT / "tools/packages.txt").read_text()):
            listed = subprocess.run(["dpkg", "-L", package], stdout=subprocess.PIPE,
                                    stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
            files += [pathlib.Path(name) for name in listed if re.search(r"\.so(\.|$)", name)]
        self.assertTrue(any(file.name.startswith("libdnnl.so") for file in files))
        self.assertRegex(archive.check_libraries(files), r"^2\.\d+$")

    @unittest.skipIf(shutil.which("dpkg") is None, "there is no dpkg")
    def test_knows_all_libraries_that_are_part_of_the_c_library(self):
        listed = subprocess.check_output(["dpkg", "-L", "libc6"], text=True).splitlines()
        names = {pathlib.Path(name).name for name in listed}
        ours = {name for name in names if re.fullmatch(r"(lib|ld-).*\.so\.\d+", name)}
        self.assertIn("libresolv.so.2", ours)
        self.assertEqual([name for name in ours if not archive.is_of_system(name)], [])

    def test_packs_programs_without_their_symbols_where_they_are_to_be(self):
        source = self.write("a.cc", "int main() { return 7; }\n")
        program = self.folder / "built/tests/x/a_gpu_test"
        program.parent.mkdir(parents=True)
        subprocess.check_call(["g++", "-g", source, "-o", program])
        archive.copy_programs({"tests/x/a_gpu_test": program}, self.folder / "programs")
        copy = self.folder / "programs/tests/x/a_gpu_test"
        self.assertEqual(subprocess.run([copy]).returncode, 7)
        self.assertNotIn(".symtab", subprocess.check_output(["readelf", "-SW", copy], text=True))

    def test_is_not_made_without_one_of_its_programs(self):
        with self.assertRaisesRegex(archive.ArchiveError, "strip -o failed.*no_such"):
            archive.copy_programs({"a": self.folder / "no_such"}, self.folder / "programs")

    def test_names_the_c_library_that_it_needs(self):
        manifest = "needs: glibc 2.34 or later, x86_64-linux-gnu\nlibabsl-dev 20220623\n"
        for version in ("2.34", "2.36", "3.0"):
            archive.check_system(manifest, ("glibc", version))
        for libc, found in {("glibc", "2.31"): "here is glibc 2.31", ("", ""): "here is no glibc"}.items():
            with self.assertRaisesRegex(archive.ArchiveError, f"glibc 2.34 or later; {found}$"):
                archive.check_system(manifest, libc)
        with self.assertRaisesRegex(archive.ArchiveError, "does not say"):
            archive.check_system("libabsl-dev 20220623\n", ("glibc", "2.36"))

    def test_is_not_unpacked_where_the_c_library_is_too_old(self):
        self.write("content/MANIFEST", "needs: glibc 99.1 or later, x86_64-linux-gnu\n")
        packed, prefix = self.folder / "a.tar.xz", self.folder / "prefix"
        archive_of(self.folder / "content", packed)
        self.write("prefix/file", "of the archive before")
        with self.assertRaisesRegex(archive.ArchiveError, "glibc 99.1"):
            archive.unpack(packed, prefix)
        self.assertTrue((prefix / "file").exists())

    def test_is_unpacked_once(self):
        self.write("content/MANIFEST", MANIFEST)
        self.write("content/file", "first")
        packed, prefix = self.folder / "a.tar.xz", self.folder / "prefix"
        archive_of(self.folder / "content", packed)
        archive.unpack(packed, prefix)
        self.write("prefix/file", "changed here")
        archive.unpack(packed, prefix)
        self.assertEqual((prefix / "file").read_text(), "changed here")

    def test_replaces_what_an_older_archive_left(self):
        packed, prefix = self.folder / "a.tar.xz", self.folder / "prefix"
        self.write("content/MANIFEST", MANIFEST)
        self.write("content/old", "")
        archive_of(self.folder / "content", packed)
        archive.unpack(packed, prefix)
        (self.folder / "content/old").rename(self.folder / "content/new")
        archive_of(self.folder / "content", packed)
        os.utime(packed, ns=(1, 1))
        archive.unpack(packed, prefix)
        self.assertEqual([(prefix / name).exists() for name in ("old", "new")], [False, True])

    def test_cannot_be_made_where_there_is_no_apt(self):
        self.write("bin/env", "", 0o755)
        result = subprocess.run([sys.executable, ROOT / "tools/gpu_check", "--pack",
                                 self.folder / "a.tar.xz"], stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "PATH": str(self.folder / "bin")})
        self.assertEqual((result.returncode, result.stderr),
                         (1, "gpu_check: there is no apt-get here: pack on a Debian system\n"))


if __name__ == "__main__":
    unittest.main()

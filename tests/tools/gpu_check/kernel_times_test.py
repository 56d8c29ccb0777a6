#!/usr/bin/env python3
"""Tests of tools/gpu/kernel_times.py."""

import unittest

from folder import Folder
from gpu import kernel_times


def work(name, begin_ms, end_ms):
    return {"name": name, "grid": 1, "begin_ns": round(begin_ms * 1e6), "end_ns": round(end_ms * 1e6)}


class KernelTimesTest(Folder):
    def test_reads_what_there_is(self):
        self.assertEqual(kernel_times.read(self.folder / "none"), [])
        path = self.write("times.jsonl", '{"name": "a", "grid": 2, "begin_ns": 1, "end_ns": 3}\n')
        self.assertEqual(kernel_times.read(path),
                         [{"name": "a", "grid": 2, "begin_ns": 1, "end_ns": 3}])

    def test_takes_the_last_milliseconds(self):
        works = [work("a", 0, 5), work("b", 1, 2), work("c", 4, 6)]
        self.assertEqual([one["name"] for one in kernel_times.of_last(works, 5)], ["b", "c"])
        self.assertEqual(kernel_times.of_last([], 5), [])

    def test_counts_times_at_which_several_run_once(self):
        self.assertEqual(kernel_times.busy_ms(
            [work("c", 10, 12), work("a", 0, 5), work("b", 1, 3), work("d", 4, 6)]), 8)
        self.assertEqual(kernel_times.busy_ms([]), 0)

    def test_sums_by_names_the_longest_first(self):
        works = [work("a", 0, 1), work("b", 1, 5), work("a", 5, 7), work("c", 7, 10)]
        self.assertEqual(kernel_times.sums(works), [("b", 1, 4), ("a", 2, 3), ("c", 1, 3)])

    def test_names_are_short(self):
        for name, expected in (
                ("void stagecoach::kernels::(anonymous namespace)::ApplyKernel<__nv_bfloat16, 8, "
                 "true>(stagecoach::kernels::Arguments)", "ApplyKernel<bf16, 8, true>"),
                ("nvjet_sm90_tst_256x128", "nvjet_sm90_tst_256x128"), ("copy", "copy"),
                ("a" * 61, "a" * 57 + "...")):
            self.assertEqual(kernel_times.short(name), expected)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""How tools/gpu_check accounts for its steps."""

import sys
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True

from folder import LONG_S, Folder, has_text
from gpu.check import (FAILED, NOT_RUN, PASSED, RUNNING, SKIPPED, TIMED_OUT, CannotGoOn, Check,
                       Figure, Step, StepSkipped, StepTimedOut)


def passes(log):
    log.run(["true"])


def raises(error):
    def run(log):
        raise error
    return run


class CheckTest(Folder):
    def run_steps(self, *functions, first_limit_s=LONG_S, budget_s=LONG_S):
        """Runs steps named s0, s1, ...; returns whether all were good and the status of each."""
        plan = [Step(f"s{i}", "a step", LONG_S if i else first_limit_s, run)
                for i, run in enumerate(functions)]
        good = Check(self.folder / "out", plan, budget_s, say=lambda line: None).run()
        return good, [step["status"] for step in self.results()["steps"]]

    def test_is_good_if_all_steps_pass_or_are_skipped(self):
        good, statuses = self.run_steps(passes, raises(StepSkipped("no torch")))
        self.assertTrue(good)
        self.assertEqual(statuses, [PASSED, SKIPPED])

    def test_goes_on_after_a_step_that_fails(self):
        good, statuses = self.run_steps(lambda log: log.run(["false"]), passes)
        self.assertFalse(good)
        self.assertEqual(statuses, [FAILED, PASSED])
        self.assertEqual(self.results()["steps"][0]["reason"], "false ended with status 1")

    def test_ends_after_a_step_without_which_there_is_nothing_to_run(self):
        good, statuses = self.run_steps(raises(CannotGoOn("no GPU")), passes)
        self.assertFalse(good)
        self.assertEqual(statuses, [FAILED, NOT_RUN])
        self.assertEqual(self.results()["steps"][1]["reason"], "no GPU")

    def test_ends_a_step_at_its_limit_with_all_that_it_started(self):
        pid_file = self.folder / "pid"
        script = f"sleep 1000 & echo $! >{pid_file}; wait"
        # A busy machine may come to nothing of the script before a short limit.
        for limit_s in (0.5, 5, 50):
            good, statuses = self.run_steps(lambda log: log.run(["sh", "-c", script]), passes,
                                            first_limit_s=limit_s)
            self.assertFalse(good)
            self.assertEqual(statuses, [TIMED_OUT, PASSED])
            if has_text(pid_file):
                break
        self.assert_ends(int(pid_file.read_text()))

    def test_ends_what_a_command_leaves_behind(self):
        pid_file = self.folder / "pid"
        _, statuses = self.run_steps(
            lambda log: log.run(["sh", "-c", f"sleep 1000 & echo $! >{pid_file}"]))
        self.assertEqual(statuses, [PASSED])
        self.assert_ends(int(pid_file.read_text()))

    def test_ends_a_command_at_a_limit_of_its_own(self):
        def step(log):
            with self.assertRaises(StepTimedOut):
                log.run(["sleep", "1000"], limit_s=0.5)
            self.assertTrue(log.has_time())
            log.run(["true"])
        self.assertEqual(self.run_steps(step)[1], [PASSED])

    def test_gives_a_step_no_more_than_what_is_left_of_all_the_time(self):
        with unittest.mock.patch("gpu.check._LEAST_SECONDS", 0):  # the first step is always begun
            _, statuses = self.run_steps(lambda log: log.run(["sleep", "1000"]), passes, budget_s=4)
        self.assertEqual(statuses, [TIMED_OUT, NOT_RUN])

    def test_gives_a_step_what_earlier_ones_have_left(self):
        # The first may take the three seconds of its limit and the last two need LONG_S each.
        seconds = []
        for budget_s in (2 * LONG_S + 3, 2 * LONG_S + 20):
            left = []
            self.run_steps(lambda log: left.append(log.deadline - time.monotonic()), passes, passes,
                           first_limit_s=3, budget_s=budget_s)
            seconds += left
        self.assertAlmostEqual(seconds[0], 3, delta=1)
        self.assertAlmostEqual(seconds[1], 20, delta=1)

    def test_takes_a_defect_of_a_step_for_its_failure(self):
        _, statuses = self.run_steps(lambda log: 1 / 0, passes)
        self.assertEqual(statuses, [FAILED, PASSED])

    def test_names_a_program_that_does_not_exist(self):
        self.run_steps(lambda log: log.run(["/no/such/program"]))
        self.assertIn("/no/such/program: No such file", self.results()["steps"][0]["reason"])

    def test_has_results_of_all_steps_on_disk_while_it_runs(self):
        seen = []
        self.run_steps(passes, lambda log: seen.extend(self.results()["steps"]), passes)
        self.assertEqual([step["status"] for step in seen], [PASSED, RUNNING, NOT_RUN])

    def test_keeps_the_output_and_shows_its_end_where_a_step_fails(self):
        self.run_steps(lambda log: log.run(["sh", "-c", "seq 100; exit 3"]))
        self.assertIn("\n1\n2\n", (self.folder / "out/s0.log").read_text())
        self.assertIn("100", self.results()["steps"][0]["tail"])

    def test_runs_commands_together_each_with_its_variables(self):
        # Each waits for the other one.
        script = f"touch {self.folder}/$ME; until [ -e {self.folder}/$PEER ]; do :; done; echo $ME"
        answers = []

        def step(log):
            answers.extend(log.run_together([["sh", "-c", script]] * 2,
                                            [{"ME": "a", "PEER": "b"}, {"ME": "b", "PEER": "a"}]))
        self.run_steps(step)
        self.assertEqual(answers, [(0, "a\n"), (0, "b\n")])

    def test_says_which_targets_are_missed(self):
        def step(log):
            log.figures += [Figure("ratio", 0.5, "", ">= 1.1", False), Figure("time", 3.25, "ms")]
        self.run_steps(step)
        summary = (self.folder / "out/summary.txt").read_text()
        self.assertRegex(summary, r"ratio +0\.5 +target >= 1\.1: MISSED")
        self.assertRegex(summary, r"time +3\.25 ms\n")
        self.assertIn("1 targets missed", summary)


if __name__ == "__main__":
    unittest.main()

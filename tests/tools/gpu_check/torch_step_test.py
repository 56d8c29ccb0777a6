#!/usr/bin/env python3
"""What tools/gpu_check runs in PyTorch: turns, and where there is PyTorch, each work on the CPU."""

import importlib.util
import json
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True

from folder import LONG_S, ROOT, Folder

sys.path.insert(0, str(ROOT / "tools/gpu"))
import torch_step

# Others need a GPU, or a compiler and half a minute.
ON_CPU = {"network": ("eager",), "gpt2": ("eager",), "llama": ("eager",), "attention": ("flash",),
          "generate": ("eager",), "resnet50": ("eager",), "resnet18": ("eager",)}


# The folder tools/torch is found, too, but is no package.
_TORCH = importlib.util.find_spec("torch")


class TurnTest(Folder):
    def turn(self):
        turn = torch_step.Turn(self.folder / "turn")
        self.addCleanup(turn.close)
        return turn

    def test_comes_once_all_others_have_ended_their_preparations(self):
        first, second = self.turn(), self.turn()
        times = threading.Thread(target=first.is_alone)
        times.start()
        times.join(0.2)
        self.assertTrue(times.is_alive())
        with unittest.mock.patch("torch_step.PATIENCE_S", 0.2):
            self.assertFalse(second.is_alone())  # the first is timed meanwhile
        times.join(LONG_S)
        self.assertFalse(times.is_alive())

    def test_comes_once_the_one_before_has_ended(self):
        first, second = self.turn(), self.turn()
        second.close()
        self.assertTrue(first.is_alone())
        first.close()
        self.assertTrue(self.turn().is_alone())

    def test_is_not_waited_for_longer_than_others_may_take(self):
        turn, _ = self.turn(), self.turn()
        start = time.monotonic()
        with unittest.mock.patch("torch_step.PATIENCE_S", 0.2):
            self.assertFalse(turn.is_alone())
        self.assertLess(time.monotonic() - start, LONG_S)

    def test_is_not_waited_for_without_a_file(self):
        self.assertTrue(torch_step.Turn(None).is_alone())


@unittest.skipUnless(_TORCH and _TORCH.origin, "there is no PyTorch")
class WorksTest(unittest.TestCase):
    def test_all_answer_with_a_time(self):
        for work, forms in ON_CPU.items():
            for form in forms:
                with self.subTest(work=work, form=form):
                    output = subprocess.run(
                        [sys.executable, ROOT / "tools/gpu/torch_step.py", work, form, "--small",
                         "--device", "cpu"], stdout=subprocess.PIPE, text=True).stdout
                    answers = [json.loads(line) for line in output.splitlines()]
                    self.assertTrue(answers)
                    for answer in answers:
                        self.assertGreater(answer.get("ms", 0), 0, answer)

    def test_have_as_many_parameters_as_stagecoachs(self):
        import torch
        import torch_works
        import works

        for model, expected in ((works.FULL.gpt2, 124_439_808 + 47 * 768),
                                (works.FULL.llama, 1_100_048_384)):
            with torch.device("meta"):
                network = (torch_works.Llama if model.hidden else torch_works.Gpt2)(model)
            self.assertEqual(sum(p.numel() for p in network.parameters()), expected)
        for net, expected in ((works.FULL.resnet50, 25_557_032), (works.FULL.resnet18, 11_173_962)):
            with torch.device("meta"):
                network, _, _ = torch_works.resnet_and_batch(net)
            self.assertEqual(sum(p.numel() for p in network.parameters()), expected)


if __name__ == "__main__":
    unittest.main()

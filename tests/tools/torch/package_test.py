#!/usr/bin/env python3
"""tools/torch: profiles of PyTorch models, and plans that PyTorch runs.

    tests/tools/torch/package_test.py build/release/tools/stagecoach

Exit status 77, with the reason, where there is no PyTorch that knows the schedules.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[2] / "tools" / "torch"
STAGECOACH = None
SCHEDULES = ["gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe-v", "auto"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
               "PYTHONPATH": os.pathsep.join([str(PACKAGE), str(HERE), os.environ.get("PYTHONPATH", "")])}


def call(*arguments, cwd):
    return subprocess.run(arguments, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)


def package(*arguments, cwd):
    return call(sys.executable, "-m", "stagecoach_torch", *arguments, cwd=cwd)


def torchrun(ranks, *arguments, cwd):
    return call(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *arguments, cwd=cwd)


class Package(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def profile(self, module="chains", rows="2,4"):
        result = package("profile", module, "--rows", rows, "--repeats", "2", "-o", "profile.json", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads((self.folder / "profile.json").read_text())

    def plan(self, name, *arguments, form="torch-lowered"):
        result = call(STAGECOACH, "plan", "--profile", "profile.json", "--json", "--export", f"{form}:{name}.csv",
                      *arguments, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        (self.folder / f"{name}.json").write_text(result.stdout)


class Profile(Package):
    def test_has_the_sizes_of_every_layer(self):
        profile = self.profile()
        self.assertEqual(profile["micro_batch_rows"], [2, 4])
        self.assertEqual([layer["name"] for layer in profile["layers"]], [str(i) for i in range(12)])
        first, tanh, linear = profile["layers"][:3]
        self.assertEqual(first["parameter_bytes"], 4 * 13 * 24)
        self.assertEqual(first["optimizer_bytes"], 8 * 13 * 24)
        self.assertEqual(first["input_bytes"], [4 * 2 * 12, 4 * 4 * 12])
        self.assertEqual(first["output_bytes"], [4 * 2 * 24, 4 * 4 * 24])
        self.assertEqual(first["backward_input_ms"], [0, 0])  # nothing wants it
        self.assertEqual((tanh["parameters"], tanh["step_ms"]), (0, 0))
        self.assertEqual(tanh["backward_weight_ms"], [0, 0])
        self.assertEqual(tanh["output_last_use"], "backward_input")  # tanh keeps what it gives
        self.assertEqual((linear["stash_bytes"], linear["output_last_use"]), ([0, 0], "forward"))
        for layer in profile["layers"]:
            self.assertGreater(min(layer["forward_ms"]), 0)

    def test_measures_beside_others(self):
        result = package("profile", "chains", "--rows", "2", "--repeats", "2", "--beside", "1", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        alone, beside = self.profile(rows="2")["layers"], json.loads(result.stdout)["layers"]
        self.assertEqual([layer["stash_bytes"] for layer in alone], [layer["stash_bytes"] for layer in beside])
        self.assertGreater(min(layer["forward_ms"][0] for layer in beside), 0)
        refused = package("profile", "chains", "--beside", "1", "--device", "cuda", cwd=self.folder)
        self.assertEqual(refused.returncode, 65)
        self.assertIn("--beside is for CPU devices", refused.stderr)

    def test_says_what_cannot_be_profiled(self):
        for module, error in {"nowhere": "there is no module nowhere",
                              "chains:none": "module chains has no function none",
                              "chains:make_in_place": "layer 1 changes its input in place, which another stage has too: make it with",
                              "chains:make_nested_in_place": "layer 1 changes its input in place, which another stage has too: make 0 with",
                              "chains:make_keyword": "layer 1, a Scaled, cannot be called with one tensor: missing a required",
                              "chains:make_of_depth": "chains.make_of_depth must take no arguments: missing a required",
                              "chains:make_unfit": "layer 1 fails on an input of 1 x 24: RuntimeError: ",
                              "chains:make_branch": "the model is a Branch; a plan cuts a torch.nn.Sequential"}.items():
            result = package("profile", module, cwd=self.folder)
            self.assertEqual(result.returncode, 65, module)
            self.assertIn(error, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_lets_a_layer_change_what_is_its_own(self):
        self.assertEqual(len(self.profile("chains:make_inner_in_place")["layers"]), 2)

    def test_says_which_layers_share_a_parameter(self):
        self.assertEqual(self.profile("chains:make_tied")["ties"], [{"layer": "1", "other_layer": "2", "bytes": 4 * 24 * 24}])


class Cluster(Package):
    def test_has_a_link_that_plans_count(self):
        self.profile()
        result = torchrun(2, "-m", "stagecoach_torch", "cluster", "--repeats", "3", "-o", "cluster.toml", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        text = (self.folder / "cluster.toml").read_text()
        self.assertRegex(text, r'hosts = 1\ndevices_per_host = 2\n\n\[links\]\nwithin_host = {latency_us = [\d.]+, gigabytes')
        self.assertGreater(float(text.split("latency_us = ")[1].split(",")[0]), 0)
        shape = ["--schedule", "1f1b", "--micro-batches", "8", "--global-batch-size", "16"]
        self.plan("free", "--devices", "2", *shape)
        self.plan("counted", "--cluster", "cluster.toml", *shape)
        free, counted = (json.loads((self.folder / f"{name}.json").read_text())["step_ms"] for name in ("free", "counted"))
        self.assertGreater(counted, free)

    def test_says_that_one_process_has_no_messages(self):
        result = torchrun(1, "-m", "stagecoach_torch", "cluster", cwd=self.folder)
        self.assertIn("stagecoach_torch: there is no message to measure with one process", result.stderr)


class Transformers(unittest.TestCase):
    def test_layers_compute_what_the_model_does(self):
        try:
            import transformers
        except ImportError:
            self.skipTest("transformers is not installed")
        import torch

        from stagecoach_torch.layers import layers_of

        sizes = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1}
        gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=8, **sizes))
        llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            num_hidden_layers=2, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, **sizes))
        ids = torch.randint(50, (3, 8))
        for model in (gpt2.eval(), llama.eval()):
            x = ids
            for _, layer in layers_of(model):
                x = layer(x)
            torch.testing.assert_close(x, model(ids).logits)


class Run(Package):
    def check_all(self, ranks):
        self.profile()
        for schedule in SCHEDULES:
            self.plan(schedule, "--devices", str(ranks), "--schedule", schedule, "--micro-batches", "8", "--global-batch-size", "16")
            # The same from simulate.
            self.plan("order", "--devices", str(ranks), "--schedule", schedule, "--micro-batches", "8", "--global-batch-size", "16", form="torch-schedule")
            saved = call(STAGECOACH, "simulate", "--schedule", "order.csv", "--lowered", "--save", f"simulated-{schedule}.csv", cwd=self.folder)
            self.assertEqual(saved.returncode, 0, saved.stderr)
            (self.folder / "order.json").rename(self.folder / f"simulated-{schedule}.json")
        self.plan("recomputed", "--devices", str(ranks), "--schedule", "1f1b", "--micro-batches", "8", "--global-batch-size", "16")
        plan = json.loads((self.folder / "recomputed.json").read_text())
        plan["recomputed_layers"] = [1, 2, 10]
        (self.folder / "recomputed.json").write_text(json.dumps(plan))
        (self.folder / "profile.json").unlink()
        result = torchrun(ranks, str(HERE / "run_all.py"), ".", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(result.stdout.count(" are the same") + result.stdout.count(" agree: "), 2 * len(SCHEDULES) + 1, result.stdout)
        self.assertEqual(result.stdout.count("step  predicted "), 2 * len(SCHEDULES) + 1, result.stdout)

    def test_gives_the_gradients_of_one_process_on_two_ranks(self):
        self.check_all(2)

    def test_gives_the_gradients_of_one_process_on_four_ranks(self):
        self.check_all(4)

    def test_says_that_gradients_differ(self):
        self.profile()
        self.plan("plan", "--devices", "2", "--schedule", "1f1b")
        result = torchrun(2, "-m", "stagecoach_torch", "run", "plan.json", "plan.csv", "chains:make_unequal", "--check",
                          "--steps", "1", cwd=self.folder)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(" DIFFER: ", result.stdout)

    def test_compares_without_dropout(self):
        self.profile("chains:make_with_dropout")
        self.plan("plan", "--devices", "2", "--schedule", "1f1b")
        result = torchrun(2, "-m", "stagecoach_torch", "run", "plan.json", "plan.csv", "chains:make_with_dropout", "--check",
                          "--steps", "1", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("compared with dropout off\n", result.stdout)
        noisy = torchrun(2, "-m", "stagecoach_torch", "run", "plan.json", "plan.csv", "chains:make_with_noise", "--check",
                         "--steps", "1", cwd=self.folder)
        self.assertNotEqual(noisy.returncode, 0)
        self.assertIn("; they differ because the model draws random numbers even with dropout off", noisy.stdout)

    def test_says_what_cannot_be_run(self):
        self.profile()
        self.plan("plan", "--devices", "2", "--schedule", "1f1b")
        self.plan("replicas", "--devices", "4", "--schedule", "1f1b", "--replicas", "2", "--micro-batches", "8", "--global-batch-size", "16")
        for arguments, error in {("none.json", "plan.csv"): "none.json: No such file",
                                 ("plan.csv", "plan.csv"): "plan.csv: Extra data",
                                 ("replicas.json", "replicas.csv"): "plan with --replicas 1",
                                 ("plan.json", "plan.csv"): "start this under torchrun"}.items():
            result = package("run", *arguments, "chains", cwd=self.folder)
            self.assertEqual(result.returncode, 65, arguments)
            self.assertIn(error, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        result = torchrun(2, "-m", "stagecoach_torch", "run", "plan.json", "plan.csv", "chains:make_tied", cwd=self.folder)
        self.assertIn("it was made for another model", result.stderr)
        result = torchrun(2, "-m", "stagecoach_torch", "run", "plan.json", "plan.csv", "chains:make_in_place_later", cwd=self.folder)
        self.assertRegex(result.stderr, "stagecoach_torch: rank 1, stages 1: RuntimeError: .* in-place operation")
        self.assertNotIn("stagecoach_torch/run.py", result.stderr)  # no traceback of ours; torchrun prints its own


class Schedules(Package):
    def test_the_order_of_schedule1f1b_is_refused_with_the_reason(self):
        from torch.distributed.pipelining import Schedule1F1B

        for ranks, micro_batches in [(2, 4), (4, 8), (3, 3)]:
            shape = types.SimpleNamespace(_num_stages=ranks, _n_microbatches=micro_batches)
            order = Schedule1F1B._get_pipeline_order(shape)
            rows = [",".join("" if action is None else str(action) for action in order[rank]) for rank in range(ranks)]
            (self.folder / "torch.csv").write_text("\n".join(rows) + "\n")
            result = call(STAGECOACH, "simulate", "--schedule", "torch.csv", cwd=self.folder)
            self.assertEqual(result.returncode, 65, result.stdout)
            self.assertIn("the last rank skips micro-batch 0, as the order that PyTorch's Schedule1F1B gives", result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)


if __name__ == "__main__":
    try:
        import torch
        from torch.distributed.pipelining import schedules
        if not hasattr(schedules, "WAIT_SEND_F"):
            raise ImportError(f"PyTorch {torch.__version__} has no waits in its schedules; 2.15 has")
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    STAGECOACH = os.path.abspath(sys.argv.pop(1))
    sys.path[:0] = [str(PACKAGE), str(HERE)]
    unittest.main()

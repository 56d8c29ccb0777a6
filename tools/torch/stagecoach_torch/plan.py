"""Plans of `stagecoach plan --json --export torch-lowered:FILE`."""

import csv
import json
import re

from stagecoach_torch.errors import UserError


class Plan:
    """What `stagecoach plan --json` says of a plan, and the rows of its schedule: a list of cells per rank."""

    def __init__(self, path, schedule_path):
        try:
            with open(path, encoding="utf-8") as file:
                evaluation = json.load(file)
            with open(schedule_path, encoding="utf-8", newline="") as file:
                self.rows = [row for row in csv.reader(file) if row]
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}") from None
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None
        try:
            self.layers = [stage["layers"] for stage in evaluation["stages"]]
            self.devices = [stage["devices"] for stage in evaluation["stages"]]
            self.replicas = max(stage["replicas"] for stage in evaluation["stages"])
            self.peak_bytes = [stage["memory_bytes"]["peak"] for stage in evaluation["stages"]]
            self.step_ms = evaluation["step_ms"]
            self.micro_batches = evaluation["micro_batches"]
            self.micro_batch_rows = evaluation["micro_batch_rows"]
            self.recomputed = set(evaluation["recomputed_layers"])
        except (KeyError, TypeError):
            raise UserError(f"{path} is not what stagecoach plan --json prints") from None
        if self.replicas > 1:
            raise UserError(f"{path} has {self.replicas} replicas of each stage, which run does not start; plan with --replicas 1")
        self._place_stages(schedule_path)

    def _place_stages(self, path):
        self.rank_of_stage = {}
        for rank, row in enumerate(self.rows):
            for stage in re.findall(r"(?:^|[(;,])(\d+)", ",".join(row)):
                if self.rank_of_stage.setdefault(int(stage), rank) != rank:
                    raise UserError(f"{path}: stage {stage} is in two rows")
        if sorted(self.rank_of_stage) != list(range(len(self.layers))):
            raise UserError(f"{path} is the schedule of other stages than the plan's {len(self.layers)}")

    @property
    def ranks(self):
        return len(self.rows)

    def stages_of(self, rank):
        return [stage for stage in range(len(self.layers)) if self.rank_of_stage[stage] == rank]

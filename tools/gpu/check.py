"""Runs a list of steps within a time limit each and one for all, and records their results."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import signal
import subprocess
import time

# A step is not begun with less than this left.
_LEAST_SECONDS = 5.0
# From the polite request to end until the process group is killed.
_GRACE_SECONDS = 3.0
_TAIL_LINES = 30
# By which this process is asked to end.
_ENDING = {signal.SIGINT, signal.SIGTERM}

PASSED, FAILED, TIMED_OUT, SKIPPED = "passed", "FAILED", "TIMED OUT", "skipped"
# Also of a step that the end of the time or of an earlier step has kept from being run.
NOT_RUN = "NOT RUN"
RUNNING = "RUNNING"
# The check as a whole is good if every step is one of these.
GOOD = {PASSED, SKIPPED}

ANY_STATUS = range(-64, 256)


class StepFailed(Exception):
    """The step has failed, for this reason."""


class StepTimedOut(Exception):
    """The step has been ended by a time limit."""


class StepSkipped(Exception):
    """What the step tests is not available here, which is allowed."""


class CannotGoOn(Exception):
    """The step has failed, and no later one can be run."""


@dataclasses.dataclass
class Figure:
    """A number that a step found. `target` is the reader's; `met` is None without a target."""

    name: str
    value: float
    unit: str = ""
    target: str = ""
    met: bool | None = None


@dataclasses.dataclass
class Step:
    """`run` is called with a Log, and raises one of the exceptions above unless it passes."""

    name: str
    title: str
    limit_s: float  # and more, where earlier steps have left some of theirs
    run: object
    groups: tuple = ()  # by whose names it can be asked for, too
    is_extra: bool = False  # run only where it is asked for
    is_needed: bool = False  # run whatever is asked for


def chosen_steps(steps, only):
    """Those that --only asks for, or without it all but the extra ones. ValueError: no such step."""
    if only is None:
        return [step for step in steps if not step.is_extra]
    asked = set(only.split(","))
    known = {name: None for step in steps for name in (step.name, *step.groups)}
    unknown = asked - known.keys()
    if unknown:
        raise ValueError(f"no step {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [step for step in steps if step.is_needed or asked & {step.name, *step.groups}]


@dataclasses.dataclass
class Result:
    """The result of a step."""

    step: str
    title: str
    status: str = NOT_RUN
    reason: str = ""
    seconds: float = 0.0
    figures: list = dataclasses.field(default_factory=list)
    # Of the log of a step that is not good.
    tail: list = dataclasses.field(default_factory=list)


class Log:
    """Runs the commands of one step, with their output in one file, and takes its figures."""

    def __init__(self, path, deadline):
        self.path = path
        self.figures = []  # count whatever becomes of the step
        self.deadline = deadline  # of time.monotonic()
        self._processes = []
        path.write_text("")

    def say(self, text):
        with open(self.path, "a", encoding="utf-8") as log:
            log.write(text + "\n")

    def run(self, command, env=None, accept=(0,), limit_s=None):
        """Runs one command; returns its exit status and its output. See run_together()."""
        (status, text), = self.run_together([command], [env or {}], accept, limit_s)
        return status, text

    def run_together(self, commands, environments, accept=(0,), limit_s=None):
        """Runs commands at the same time, each with variables of its own.

        Returns (exit status, output) of each. StepFailed unless all statuses are in `accept`, where
        ANY_STATUS has all. StepTimedOut at the limit of the step, or after `limit_s` seconds.
        """
        outputs = [self.path.with_name(f".{self.path.name}.{i}") for i in range(len(commands))]
        try:
            for command, extra, output in zip(commands, environments, outputs):
                command = [str(part) for part in command]
                shown = [f"{name}={value}" for name, value in extra.items()] + command
                self.say("$ " + " ".join(shown))
                with _held_signals():  # or one that comes now leaves a process that is not known
                    self._processes.append(_start(command, extra, output))
            statuses = self._wait(limit_s)
        finally:
            self.end_all()
            texts = [_take(output) for output in outputs]
            for text in texts:
                self.say(text)
        for command, status in zip(commands, statuses):
            if status not in accept:
                raise StepFailed(f"{pathlib.Path(str(command[0])).name} {_how(status)}")
        return list(zip(statuses, texts))

    def has_time(self):
        """Whether the limit of the step has not been reached."""
        return time.monotonic() < self.deadline

    def _wait(self, limit_s):
        statuses = []
        until = self.deadline
        if limit_s is not None:
            until = min(until, time.monotonic() + limit_s)
        for process in self._processes:
            left = until - time.monotonic()
            try:
                statuses.append(process.wait(max(left, 0.0)))
            except subprocess.TimeoutExpired:
                raise StepTimedOut() from None
        return statuses

    def end_all(self):
        """Ends all processes, and those that they have started, even if they have ended themselves."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                _signal_group(process, sent)
            until = time.monotonic() + _GRACE_SECONDS
            while time.monotonic() < until and any(map(_group_lives, self._processes)):
                time.sleep(0.02)
        self._processes.clear()


def _signal_group(process, sent):
    with contextlib.suppress(ProcessLookupError):  # none of it is left
        os.killpg(process.pid, sent)


def _group_lives(process):
    """Whether a process of the group runs. In a container nobody may reap those that have ended."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return any(map(functools.partial(_is_of_group, process.pid), pathlib.Path("/proc").glob("[0-9]*")))


def _is_of_group(group, folder):
    try:
        state, _, its_group = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:3]
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return False
    return state not in "ZX" and int(its_group) == group


@contextlib.contextmanager
def _held_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _start(command, extra, output):
    with open(output, "wb") as file:
        try:
            # In a process group of its own, so that all of it can be ended.
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file,
                                    stderr=subprocess.STDOUT, start_new_session=True,
                                    env={**os.environ, **extra}, preexec_fn=_accept_signals)
        except OSError as error:
            raise StepFailed(f"{command[0]}: {error.strerror}") from None


def _accept_signals():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _take(output):
    if not output.exists():
        return ""
    text = output.read_text(encoding="utf-8", errors="replace")
    output.unlink()
    return text


def _how(status):
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


class Check:
    """The whole: results are on disk after every step, whatever happens next."""

    def __init__(self, out_dir, steps, budget_s, facts=None, say=print):
        self.out_dir = pathlib.Path(out_dir)
        self.steps = steps
        self.facts = facts if facts is not None else {}  # of the machine and the run; steps add
        self.results = [Result(step.name, step.title) for step in steps]
        self._start = time.monotonic()
        self._deadline = self._start + budget_s
        self._say = say
        self.out_dir.mkdir(parents=True, exist_ok=True)
        self.write()

    def run(self):
        """Runs all steps. True if each of them is good."""
        stopped = ""
        later_s = sum(step.limit_s for step in self.steps)
        for step, result in zip(self.steps, self.results):
            left = self._deadline - time.monotonic()
            later_s -= step.limit_s
            if stopped or left < _LEAST_SECONDS:
                result.reason = stopped or "no time was left"
                continue
            try:
                self._run_step(step, result, min(left, max(step.limit_s, left - later_s)))
            except CannotGoOn as error:
                stopped = str(error)
            self.write()
            self._say(_line(result))
        self.write()
        return all(result.status in GOOD for result in self.results)

    def _run_step(self, step, result, limit_s):
        begin = time.monotonic()
        log = Log(self.out_dir / f"{step.name}.log", begin + limit_s)
        # What is written now is what is found if this process is killed.
        result.status, result.reason = RUNNING, "cut short"
        self.write()
        try:
            step.run(log)
            result.status, result.reason = PASSED, ""
        except StepSkipped as error:
            result.status, result.reason = SKIPPED, str(error)
        except StepTimedOut as error:
            result.status = TIMED_OUT
            result.reason = ": ".join(filter(None, (f"after {limit_s:.0f} s", str(error))))
        except (StepFailed, CannotGoOn) as error:
            result.status, result.reason = FAILED, str(error)
            if isinstance(error, CannotGoOn):
                raise
        except (KeyboardInterrupt, SystemExit):
            result.status, result.reason = FAILED, "interrupted"
            raise
        except Exception as error:  # a defect of the step must not hide the other steps
            result.status, result.reason = FAILED, f"{type(error).__name__}: {error}"
        finally:
            result.seconds = time.monotonic() - begin
            result.figures = log.figures
            if result.status not in GOOD:
                result.tail = log.path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
            self.write()

    def write(self):
        """Writes summary.txt and results.json."""
        data = {
            "good": all(result.status in GOOD for result in self.results),
            "seconds": round(time.monotonic() - self._start, 1),
            "facts": self.facts,
            "steps": [dataclasses.asdict(result) for result in self.results],
        }
        _replace(self.out_dir / "results.json", json.dumps(data, indent=1) + "\n")
        _replace(self.out_dir / "summary.txt", self.summary())

    def summary(self):
        lines = [f"{name}: {value}" for name, value in self.facts.items()]
        lines += [""] if lines else []
        for result in self.results:
            lines.append(_line(result))
            lines += ["    " + _figure_line(figure) for figure in result.figures]
        missed = [f for r in self.results for f in r.figures if f.met is False]
        bad = sum(result.status not in GOOD for result in self.results)
        lines.append("")
        lines.append(f"{len(self.results)} steps, {bad} not good, {len(missed)} targets missed, "
                     f"{time.monotonic() - self._start:.0f} s")
        return "\n".join(lines) + "\n"


def _line(result):
    reason = f"  ({result.reason})" if result.reason else ""
    return f"{result.step:<11} {result.status:<9} {result.seconds:6.1f} s  {result.title}{reason}"


def _figure_line(figure):
    target = f"target {figure.target}" if figure.target else ""
    if figure.met is not None:
        target += ": met" if figure.met else ": MISSED"
    return f"{figure.name:<76} {figure.value:>12.4g} {figure.unit:<8} {target}".rstrip()


def _replace(path, text):
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)

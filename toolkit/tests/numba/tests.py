"""Runs tests of numba-cuda: tests.py MODULE... Each module runs in its own process. After a kernel fault or a timeout the context is
unusable, so another process continues with the remaining tests.

Tests that do not pass must be listed in the file given by --expected, one per line with the reason. Listed tests must not pass, and
tests whose reason starts with `slow` are not run. Without that file, every result is printed."""

import argparse
import faulthandler
import importlib
import os
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

CONTEXT_UNUSABLE = 3
PACKAGE = "numba.cuda.tests."


class LineReporter(unittest.TestResult):
    """Prints each result as a line: the outcome, the test and the reason."""

    def report(self, what, test, why=""):
        lines = [line.strip() for line in why.strip().splitlines() if line.strip()]
        why = lines[-1][:300] if lines else ""
        # Some tests redirect the other stream, or print text without a final newline.
        print("\nRESULT", what, test.id(), why, sep="\t", file=sys.__stdout__, flush=True)

    def startTest(self, test):
        self.report("start", test)

    def addSuccess(self, test):
        self.report("pass", test)

    def addSkip(self, test, reason):
        self.report("skip", test, reason)

    def addExpectedFailure(self, test, err):
        self.report("pass", test)

    def addUnexpectedSuccess(self, test):
        self.report("pass", test)

    def addFailure(self, test, err):
        self.report("fail", test, self._exc_info_to_string(err, test))

    def addError(self, test, err):
        # Pytest marks a test as skipped with this exception.
        if err[0].__name__ == "Skipped":
            return self.addSkip(test, str(err[1]))
        self.addFailure(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addFailure(test, err)


def cases(suite):
    for item in suite:
        yield from cases(item) if isinstance(item, unittest.TestSuite) else [item]


def work(module, done, seconds):
    """Runs the tests of a module that are not in `done`, in this process."""
    from numba import cuda

    result = LineReporter()
    tests = importlib.import_module(module)
    for test in cases(unittest.defaultTestLoader.loadTestsFromModule(tests)):
        if test.id() not in done:
            faulthandler.dump_traceback_later(seconds, exit=True)
            unittest.TestSuite([test])(result)
            faulthandler.cancel_dump_traceback_later()
            try:
                cuda.synchronize()
            except Exception:
                sys.exit(CONTEXT_UNUSABLE)


def run(module, slow, seconds):
    """Runs all tests of a module except the slow ones, and returns the outcome and the reason of each."""
    results = {}
    while True:
        command = [sys.executable, __file__, module, "--work", "--seconds", str(seconds)]
        done = "\n".join([*slow, *results])
        worker = subprocess.run(command, input=done, capture_output=True, text=True, errors="replace")
        before = len(results)
        for line in worker.stdout.splitlines():
            if line.startswith("RESULT\t"):
                _, what, test, why = line.split("\t", 3)
                if what == "start":
                    results[test] = ("stop", f"the process ended during the test, or the test took more than {seconds} s")
                elif results.get(test, ("stop",))[0] != "fail":
                    results[test] = (what, why)
        if worker.returncode == 0:
            return results
        if len(results) == before:
            why = worker.stderr.strip().rpartition("\n")[2]
            return results | {module: ("skip" if why.startswith("Skipped") else "fail", why)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--expected")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--work", action="store_true")
    args = parser.parse_args()
    if args.work:
        return work(args.modules[0], set(sys.stdin.read().splitlines()), args.seconds)

    lines = open(args.expected).read().splitlines() if args.expected else []
    expected = dict(line.split("\t") for line in lines if line and not line.startswith("#"))
    slow = [PACKAGE + test for test, why in expected.items() if why.startswith("slow")]
    wrong, counts = [], {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda module: run(PACKAGE + module, slow, args.seconds), args.modules)
    for results in found:
        for test, (what, why) in results.items():
            name = test.removeprefix(PACKAGE)
            counts[what] = counts.get(what, 0) + 1
            if not args.expected:
                print(what, name, why, sep="\t", flush=True)
            elif what in ("fail", "stop") and name not in expected:
                wrong.append(f"{name} does not pass: {why}")
            elif what == "pass" and name in expected:
                wrong.append(f"{name} passes, although it is listed: {expected[name]}")
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()

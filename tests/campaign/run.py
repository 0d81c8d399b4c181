"""Solve random problems, tally what came of them, and print the seeds of those that went wrong.

python tests/campaign/run.py --problems 10000 --seed 0
python tests/campaign/run.py --problems 1 --seed 1234 --verbose
"""

import argparse
import collections
import faulthandler
import signal
import sys
import time
import traceback
from pathlib import Path

# this checkout's package and tests, wherever another one is installed
sys.path[:0] = [str(parent) for parent in Path(__file__).resolve().parents[1:3]]

from campaign.judge import Overtime, Violation  # noqa: E402
from campaign.problems import solve  # noqa: E402


def attempt(seed, time_limit):
    """Kind, outcome ("violation" if it went wrong), what the problem was, and what went wrong."""
    notes = []

    def late(*_):
        raise Overtime

    past = signal.signal(signal.SIGALRM, late)
    # where compiled code never comes back to notice a signal
    faulthandler.dump_traceback_later(10 * time_limit, exit=True)
    signal.setitimer(signal.ITIMER_REAL, time_limit)
    try:
        kind, outcome = solve(seed, notes)
    except Violation as wrong:
        return notes[0], "violation", notes, str(wrong), wrong
    except Overtime as wrong:
        return notes[0], "violation", notes, f"not done within {time_limit} s", wrong
    except KeyboardInterrupt:
        raise
    except BaseException as wrong:
        return notes[0] if notes else "?", "violation", notes, f"outside of fit: {wrong!r}", wrong
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, past)
        faulthandler.cancel_dump_traceback_later()
    return kind, outcome, notes, "", None


def judged(seed, time_limit):
    """`attempt`, twice if the first took too long: code may have been compiled."""
    answer = attempt(seed, time_limit)
    return attempt(seed, 3 * time_limit) if isinstance(answer[4], Overtime) else answer


def main(arguments=None):
    """Run the campaign; answers the number of violations."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first problem; the others follow")
    parser.add_argument("--first", type=int, help="stop at this many violations")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for one problem")
    parser.add_argument("--verbose", action="store_true", help="print every problem, and tracebacks")
    options = parser.parse_args(arguments)
    tally = collections.Counter()
    wrong = []
    slowest = (0.0, None)
    began = time.perf_counter()
    for seed in range(options.seed, options.seed + options.problems):
        started = time.perf_counter()
        kind, outcome, notes, what, error = judged(seed, options.time_limit)
        slowest = max(slowest, (time.perf_counter() - started, seed))
        tally[kind, outcome] += 1
        if options.verbose or error is not None:
            print(f"{seed}: {outcome} {what}\n    {'; '.join(' '.join(n.split()) for n in notes)}", flush=True)
        if options.verbose and error is not None:
            traceback.print_exception(error)
        if error is not None:
            wrong.append(seed)
            if options.first and len(wrong) >= options.first:
                break
    total = sum(tally.values())
    for (kind, outcome), count in sorted(tally.items()):
        print(f"{kind:12s} {outcome:50s} {count}")
    spent = time.perf_counter() - began
    print(f"{total} problems in {spent:.0f} s, the slowest ({slowest[1]}) {slowest[0]:.1f} s; {len(wrong)} violations")
    if wrong:
        print("seeds of violations:", *wrong)
    return len(wrong)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)

"""`python -m tests.golden` compares this code with the golden record; `--write` makes it anew.

`--only WORD` takes the scenes with that word in their name, `--show` prints what differs.
"""

import argparse
import sys

from kvmesh.observe import configure_logging
from tests.golden.record import differences, read_record, write_record
from tests.golden.scenes import scenes


def main() -> int:
    configure_logging("error", "json")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--show", type=int, default=10, help="differences shown a scene")
    options = parser.parse_args()
    wanted = [one for one in scenes() if options.only in one.name]
    if options.write:
        write_record(wanted)
        return 0
    record, failed = read_record(), 0
    for scene in wanted:
        found = differences(record.get(scene.name, []), scene)
        failed += bool(found)
        print(f"{'differs' if found else 'equal':8} {scene.name}")
        for line in found[: options.show]:
            print(f"    {line}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

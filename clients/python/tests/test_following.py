"""Watches of logs: what they do about entries that do not exist."""

import pytest

from baton import GapError, Run, v1
from baton.following import follow_log


class Stream:
    """A connection whose stream sends these responses, and then waits for no more."""

    WatchRun = None

    def __init__(self, *responses):
        self.routing = self
        self._responses = responses

    async def stream(self, _method, _request):
        for response in self._responses:
            yield response


def entry(number):
    return v1.WatchRunResponse(entry=v1.RunEntry(number=number))


async def test_a_gap_of_a_run_is_an_error_that_says_where_to_go_on():
    gap = v1.WatchRunResponse(gap=v1.WatchGap(first_number=3, last_number=7))
    run = Run(Stream(entry(1), entry(2), gap, entry(8)), "r", None)
    entries = run.watch()
    assert [(await anext(entries)).number for _ in range(2)] == [1, 2]
    with pytest.raises(GapError, match="entries 3 to 7 of run r") as gone:
        await anext(entries)
    assert (gone.value.first_number, gone.value.last_number) == (3, 7)


async def test_a_watch_begins_again_after_its_last_entry():
    request = v1.WatchRunRequest(run_id="r")
    entries = follow_log(Stream(entry(4)), None, request, "run r")
    assert (await anext(entries)).entry.number == request.after_number == 4
    await entries.aclose()

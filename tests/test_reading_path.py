"""What one plain run enters: few enough files that a reader can follow it."""

from bench.reading_path import reading_path

MOST_FILES = 72


async def test_a_plain_run_with_one_tool_call_enters_few_files() -> None:
    files = await reading_path()

    paths = [file.path for file in files]
    assert len(paths) == len(set(paths))
    assert len(paths) <= MOST_FILES, "\n".join(paths)
    assert paths[0] == "client.py"
    assert {"workflows/agent_run.py", "activities/call_model.py", "activities/run_tool.py"} <= {*paths}

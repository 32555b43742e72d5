"""Lines of results files as K2VV's own tool writes them, and as others do."""

import hashlib
import json

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Web Search API.",
        "parameters": {
            "properties": {"queries": {"items": {"type": "string"}, "type": "array"}},
            "required": ["queries"],
            "type": "object",
        },
    },
}
PING = {"type": "function", "function": {"name": "ping", "parameters": {}}}
GOOD, BAD = '{"queries": ["x"]}', '{"queries": "x"}'


def call(arguments=GOOD, name="search", number=0):
    function = {"name": name, "arguments": arguments}
    return {"id": f"functions.{name}:{number}", "type": "function", "function": function}


def official(index, reason="stop", *calls, valid=None, model="kimi-k2-thinking", **fields):
    """A line as tool_calls_eval.py of MoonshotAI/K2-Vendor-Verifier writes it, streamed.

    Its shape is that of its published result files: content "", tool_calls null where there are
    none, usage null, times without a zone, MD5 of the request as json.dumps sorts it.
    """
    request = {
        "model": model,
        "messages": [
            {"role": "system", "content": "你是 Kimi"},
            {"role": "user", "content": f"question {index}"},
        ],
        "max_tokens": 64000,
        "temperature": 1.0,
        "stream": True,
        "user": "aaaaaaaaaaaaaaaaaaa",
        "tools": [SEARCH],
        **fields.pop("asked", {}),
    }
    text = json.dumps(request, sort_keys=True, ensure_ascii=False)
    message = {"role": "assistant", "content": "", "tool_calls": list(calls) or None}
    return {
        "data_index": index,
        "request": request,
        "extra_body": {},
        "response": {
            "id": f"gen-{index}",
            "object": "chat.completion",
            "created": 1758905148,
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": None,
        },
        "status": "success",
        "finish_reason": reason,
        "tool_calls_valid": valid,
        "last_run_at": "2026-04-13T10:26:32.693773",
        "duration_ms": 1040,
        "hash": hashlib.md5(text.encode()).hexdigest(),
        **fields,
    }


def failed(index, **fields):
    line = official(index)
    error = {"error_type": "APITimeoutError", "error_message": "timed out", "error": "timed out"}
    return line | {"status": "failed", "response": error, "finish_reason": None} | fields


def triggered(index, valid=True, **fields):
    return official(index, "tool_calls", call(GOOD if valid else BAD), valid=valid, **fields)


def bare(index, reason, valid=None):
    """A line without request and response, as slimmed files have them."""
    return {
        "data_index": index,
        "status": "success",
        "finish_reason": reason,
        "tool_calls_valid": valid,
    }


def write(path, *lines, end="\n"):
    text = "\n".join(x if isinstance(x, str) else json.dumps(x, ensure_ascii=False) for x in lines)
    path.write_bytes((text + end).encode("utf-8", "surrogatepass"))
    return path


def said(capsys, main, *arguments):
    """Exit code and everything printed, on one line."""
    code = main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, " ".join((shown.out + shown.err).split())

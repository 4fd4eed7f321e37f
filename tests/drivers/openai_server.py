"""A real HTTP server in a separate process that speaks the OpenAI API on a known schedule, and reports what it really did.

python openai_server.py [KEY]        prints its port; ends when its standard input closes

The model's name is the schedule: `plan-20-5` sends the first piece of text after 20 ms and the others every 5 ms. Other names
misbehave, each in its own way (`ODD`). `GET /did` returns when each piece was handed to the system, on the host's clock.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

ODD = (
    *(
        "error-500",
        "error-400",
        "html",
        "not-json",
        "cut",
        "no-usage",
        "silent",
        "redirect",
        "long-line",
        "endless",
    ),
    *(
        "no-text",
        "one-piece",
        "tells-key",
        "flaky",
        "one-at-a-time",
        "summary",
        "no-length",
        "no-http",
        "big-head",
    ),
)
MODELS = ("plan-20-5", "plan-10-1", "plan-5-1", *ODD)


def event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def delta(text: str, *, chat: bool, last: bool = False) -> dict[str, Any]:
    reason = "length" if last else None
    choice = {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}
    return {"id": "x", "object": "chunk", "choices": [{**choice, "finish_reason": reason}]}


class Server:
    def __init__(self, key: str) -> None:
        self.key = key
        self.did: list[dict[str, Any]] = []
        self.requests = 0
        self.tokens = 0
        self.alone = asyncio.Lock()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = first.split(" ")
                await self.answer(method, path, headers, body, writer)
                await writer.drain()
                if writer.is_closing():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def document(
        self,
        writer: asyncio.StreamWriter,
        status: str,
        body: bytes,
        kind: str = "application/json",
        more: str = "",
    ) -> None:
        head = f"HTTP/1.1 {status}\r\nServer: planned\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        writer.write(head.encode() + body)

    async def answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if path == "/did":
            self.document(writer, "200 OK", json.dumps(self.did).encode())
        elif path == "/metrics":
            text = (
                f'vllm:generation_tokens_total{{model_name="plan"}} {self.tokens}.0\n'
                f"vllm:prompt_tokens_total {10 * self.requests}\n# TYPE x counter\nvllm:num_requests_waiting NaN\nnonsense\n"
            )
            self.document(writer, "200 OK", text.encode(), "text/plain")
        elif self.key and given != self.key:
            values = {"error": {"message": f"Incorrect API key provided: {given}"}}
            self.document(writer, "401 Unauthorized", json.dumps(values).encode())
        elif path == "/v1/models":
            self.document(writer, "200 OK", json.dumps({"data": [{"id": name} for name in MODELS]}).encode())
        elif method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
            self.requests += 1
            await self.generate(json.loads(body), path.endswith("chat/completions"), given, writer)
        else:
            self.document(writer, "404 Not Found", b'{"error": {"message": "no such page"}}')

    async def generate(
        self, request: dict[str, Any], chat: bool, given: str, writer: asyncio.StreamWriter
    ) -> None:
        model = request["model"]
        if model == "error-500" or (model == "flaky" and self.requests % 3 == 0):
            self.document(writer, "500 Internal Server Error", b'{"error": {"message": "out of luck"}}')
        elif model == "error-400":
            self.document(writer, "400 Bad Request", b'{"message": "max_tokens is too large"}')
        elif model == "html":
            self.document(writer, "200 OK", b"<!doctype html><p>hello", "text/html")
        elif model == "redirect":
            self.document(writer, "307 Temporary Redirect", b"", more="Location: http://127.0.0.1:1/v1\r\n")
        elif model == "tells-key":
            values = {"error": {"message": f"Incorrect API key provided: {given}"}}
            self.document(writer, "401 Unauthorized", json.dumps(values).encode())
        elif model == "no-http":
            writer.write(b"SSH-2.0-something\r\n")
            writer.close()
        elif model == "big-head":
            writer.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000)
        elif model == "silent":
            await asyncio.sleep(3600)
        elif model == "one-piece" or not request.get("stream"):
            await asyncio.sleep(0.02)
            message = {"message": {"content": "one two"}} if chat else {"text": "one two"}
            usage = {"prompt_tokens": 10, "completion_tokens": 2}
            values = {"choices": [{**message, "finish_reason": "stop"}], "usage": usage}
            self.document(writer, "200 OK", json.dumps(values).encode())
        elif model == "one-at-a-time":
            async with self.alone:
                await self.stream(request, chat, writer)
        else:
            await self.stream(request, chat, writer)

    async def stream(self, request: dict[str, Any], chat: bool, writer: asyncio.StreamWriter) -> None:
        model = request["model"]
        begun = time.perf_counter_ns()
        plain = model == "no-length"
        coding = "Connection: close" if plain else "Transfer-Encoding: chunked"
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nServer: planned\r\n{coding}\r\n\r\n".encode()
        )

        def send(data: bytes) -> None:
            writer.write(data if plain else b"%x\r\n%s\r\n" % (len(data), data))

        if chat:
            send(event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
        words = model.split("-")
        first, gap = (float(words[1]), float(words[2])) if words[0] == "plan" else (20.0, 2.0)
        count = request["max_tokens"]
        pieces = [f"w{number} " for number in range(count)]
        if model == "summary":
            result = request["messages"][-1]["content"].partition("\n\n")[2]
            pieces = [piece + ". " for piece in result.split(". ")[:2]]
        sent: list[int] = []
        at = time.perf_counter() + first / 1000
        number = 0
        while number < len(pieces) or model == "endless":
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            at += gap / 1000
            if model == "not-json":
                send(b"data: {nonsense\n\n")
                return
            if model == "no-text":
                break
            if model == "long-line":
                for _ in range(160):
                    send(b"x" * 65536)
                    await writer.drain()
                return
            last = number == len(pieces) - 1
            data = event(delta(pieces[number % len(pieces)], chat=chat, last=last))
            sent.append(time.perf_counter_ns())
            send(data)
            number += 1
            if model == "endless":
                await writer.drain()
            if model == "cut" and number == 3:
                await writer.drain()
                writer.close()
                return
        if model != "no-usage" and (request.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 10, "completion_tokens": number, "total_tokens": 10 + number}
            send(event({"choices": [], "usage": usage}))
        self.tokens += number
        send(b"data: [DONE]\n\n")
        if plain:
            writer.close()
        else:
            writer.write(b"0\r\n\r\n")
        self.did.append({"begun": begun, "sent": sent, "request": {**request, "chat": chat}})


async def main(key: str) -> None:
    server = await asyncio.start_server(Server(key).connection, "127.0.0.1", 0, limit=2**22)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
    sys.exit(0)

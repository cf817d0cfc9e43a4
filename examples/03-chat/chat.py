"""Chat with a model: template, tokens, text, stop strings (needs `enginecore-client[text]`).

python examples/03-chat/chat.py client_addresses.json /models/smollm2 "Why is the sky blue?"
"""

import asyncio
import sys

from enginecore_client import AsyncMPClient, SamplingParams
from enginecore_client.text import Detokenizer, Tokenizer, read_text_async


async def main(addresses: str, model: str, question: str) -> None:
    tokenizer = Tokenizer.load(model)
    prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
    params = tokenizer.complete(SamplingParams(temperature=0.0, max_tokens=64))
    async with AsyncMPClient(addresses, ready_timeout=60) as client:
        stream = client.generate(prompt, params)
        async for piece in read_text_async(stream, Detokenizer(tokenizer, stop="\n\n\n")):
            print(piece, end="", flush=True)
    print()


asyncio.run(main(*sys.argv[1:4]))

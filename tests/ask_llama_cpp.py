"""python tests/ask_llama_cpp.py FILE.gguf: reads {"texts", "ids"} from stdin, writes what llama.cpp
makes of them: the tokens of each text, the logits after each id, the end-of-sequence token."""

import json
import os
import sys

from cyllama.llama import llama_cpp


class Model(llama_cpp.LlamaModel):
    """With what cyllama 0.2.18's contexts look for in vain."""

    @property
    def n_vocab(self) -> int:
        return self.get_vocab().n_vocab


def main(file: str) -> None:
    given = json.load(sys.stdin)
    stdout = os.dup(1)
    os.dup2(2, 1)  # what the library prints
    params = llama_cpp.LlamaModelParams()
    params.n_gpu_layers = 0
    model = Model(file, params, verbose=False)
    vocab = model.get_vocab()
    found = {
        "tokens": [vocab.tokenize(text, False, True) for text in given["texts"]],
        "logits": logits_of(model, given["ids"]) if given["ids"] else [],
        "eos": vocab.token_eos(),
        "adds_bos": vocab.get_add_bos(),
        "template": model.get_default_chat_template(),
    }
    os.dup2(stdout, 1)
    json.dump(found, sys.stdout)


def logits_of(model, ids: list[int]) -> list[list[float]]:
    """[tokens, vocabulary], computed in one batch, keys and values in float32."""
    params = llama_cpp.LlamaContextParams()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.type_k = params.type_v = 0
    params.flash_attn_type = 0
    context = llama_cpp.LlamaContext(model, params, verbose=False)
    batch = llama_cpp.LlamaBatch(n_tokens=len(ids), embd=0, n_seq_max=1)
    for position, token in enumerate(ids):
        batch.add(token, position, [0], True)
    context.decode(batch)
    return [list(context.get_logits_ith(position)) for position in range(len(ids))]


if __name__ == "__main__":
    main(sys.argv[1])

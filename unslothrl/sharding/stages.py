"""A base whose layers are divided among several learners (GPipe, arXiv 1811.06965).

    first stage    embedding | layers             a micro-batch's hidden states go from stage to
    ...            layers                         stage, their gradients back
    last stage     layers | norm, output layer

All stages walk through the same micro-batches. Only the last one has log-probabilities; an earlier
one takes those of the sampler for its own, whose gradient stands for the one that comes from the
next stage. The LoRA is whole in every stage, without a gradient outside its layers: the sum of the
learners' gradients is the gradient. A stage that is n before the last goes n micro-batches further
forward before it goes back through the oldest (1F1B, PipeDream-Flush, arXiv 2006.09503), so that
all compute at the same time and none keeps more than as many micro-batches as there are stages.
"""

from typing import Any

import torch

from unslothrl.sharding.shards import Peers


class Stage:
    """This rank's layers. `peers` is set once the ranks have met."""

    def __init__(self, model: Any, rank: int, count: int):
        """`model`: a causal model of transformers, of which the memory of what this stage does not
        compute with is freed. Its layers are Llama's."""
        self.ahead = count - 1 - rank  # micro-batches forward before the first backward
        self.is_first, self.is_last = rank == 0, rank == count - 1
        self.peers: Peers = None
        decoder, layers = model.model, len(model.model.layers)
        own = range(rank * layers // count, (rank + 1) * layers // count)
        free = [layer for i, layer in enumerate(decoder.layers) if i not in own]
        for layer in free:
            layer.forward = passed_on
        if not self.is_last:
            decoder.norm.forward = passed_on
        modules = [*decoder.layers[own.start : own.stop], decoder.norm]
        modules += [decoder.embed_tokens] if self.is_first else []
        modules += [model.get_output_embeddings()] if self.is_last else []
        needed = {id(each) for module in modules for each in module.parameters()}
        for parameter in model.parameters():
            if id(parameter) not in needed:
                parameter.data = parameter.data.new_empty(0)
                if (state := getattr(parameter, "quant_state", None)) is not None:
                    state.absmax = state.absmax.new_empty(0)

    def run(self, decoder: Any, ids: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
        """[rows, tokens, hidden], of the last stage what the output layer gets; of the others
        zeros, through which a backward pass goes on with the gradient of the next one."""
        if self.is_first:
            states = decoder(input_ids=ids, use_cache=False, **inputs).last_hidden_state
        else:
            dtype = next(decoder.norm.parameters()).dtype
            shape = (*ids.shape, decoder.config.hidden_size)
            received = self.peers.receive(torch.empty(shape, dtype=dtype, device=ids.device), -1)
            received.requires_grad_().register_hook(lambda each: self.peers.send(each, -1))
            states = decoder(inputs_embeds=received, use_cache=False, **inputs).last_hidden_state
        if self.is_last:
            return states
        self.peers.send(states, 1)
        zeros = states.clone()
        zeros.detach().zero_()
        if zeros.requires_grad:
            zeros.register_hook(lambda each: self.peers.receive(torch.empty_like(each), 1))
        return zeros


def passed_on(hidden_states: torch.Tensor, *inputs: Any, **named: Any) -> torch.Tensor:
    """In place of the forward of a layer that another stage has."""
    return hidden_states

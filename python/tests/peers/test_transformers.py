# SPDX-License-Identifier: Apache-2.0
"""Small transformers models with random weights: the same logits, gradients and texts as with attn_implementation eager."""
import pytest
import torch
import transformers

import flashattn.transformers

flashattn.transformers.register()
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 101,
         "max_position_embeddings": 128}
DECODER = {**SIZES, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def configuration(name):
    return {
        "llama": lambda: transformers.LlamaConfig(**DECODER),
        "mistral": lambda: transformers.MistralConfig(**DECODER, sliding_window=7),
        "gemma2": lambda: transformers.Gemma2Config(**DECODER, sliding_window=8, attn_logit_softcapping=5.0),
        "gpt_oss": lambda: transformers.GptOssConfig(**DECODER, sliding_window=8, num_local_experts=2,
                                                     num_experts_per_tok=1),
        "gpt2": lambda: transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=101, n_positions=128,
                                                attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0),
    }[name]()


def pair(name, seed):
    """The same model twice: eager and ours."""
    models = []
    for implementation in ("eager", "fa"):
        torch.manual_seed(seed)
        models.append(transformers.AutoModelForCausalLM.from_config(configuration(name), attn_implementation=implementation))
    for a, b in zip(models[0].parameters(), models[1].parameters()):
        assert torch.equal(a, b)
    return models


MODELS = ["llama", "mistral", "gemma2", "gpt_oss", "gpt2"]


def batch(rng):
    tokens = torch.from_numpy(rng.integers(3, 101, (3, 24)))
    mask = torch.ones_like(tokens)
    mask[1, :9] = 0  # padding on the left
    return tokens, mask


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padded", [False, True])
def test_logits_and_gradients(rng, name, padded):
    eager, ours = pair(name, int(rng.integers(2**31)))
    tokens, mask = batch(rng)
    given = {"attention_mask": mask} if padded else {}
    results = []
    for model in (eager, ours):
        model.eval()
        logits = model(tokens, **given).logits
        kept = logits[mask.bool()] if padded else logits
        kept.square().mean().backward()
        results.append([kept] + [p.grad for p in model.parameters()])
    assert len(results[0]) > 10
    for a, b in zip(*results):
        if a is None:
            assert b is None
        else:
            torch.testing.assert_close(b, a, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_generation(rng, name):
    eager, ours = pair(name, int(rng.integers(2**31)))
    tokens, mask = batch(rng)
    texts = [model.eval().generate(tokens, attention_mask=mask, max_new_tokens=12, min_new_tokens=12, do_sample=False,
                                   pad_token_id=0) for model in (eager, ours)]
    assert torch.equal(*texts)


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_caches(rng, cache):
    eager, ours = pair("llama", int(rng.integers(2**31)))
    tokens, mask = batch(rng)
    texts = [model.eval().generate(tokens, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0,
                                   cache_implementation=cache) for model in (eager, ours)]
    assert torch.equal(*texts)


def test_encoder_and_position_bias(rng):
    seed = int(rng.integers(2**31))
    tokens, mask = batch(rng)
    for make in (lambda: transformers.AutoModel.from_config(transformers.BertConfig(**SIZES), **implementation),
                 lambda: transformers.T5EncoderModel._from_config(transformers.T5Config(
                     d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=101), **implementation)):
        outputs = []
        for name in ("eager", "fa"):
            implementation = {"attn_implementation": name}
            torch.manual_seed(seed)
            try:
                model = make().eval()
            except ValueError as error:  # transformers says so of models whose attention it cannot replace
                pytest.skip(str(error))
            outputs.append(model(tokens, attention_mask=mask).last_hidden_state[mask.bool()])
        torch.testing.assert_close(outputs[1], outputs[0], atol=2e-5, rtol=1e-4)


def test_training_with_dropout_is_refused(rng):
    _, ours = pair("gpt2", 0)
    ours.config.attn_pdrop = 0.1
    for block in ours.transformer.h:
        block.attn.attn_dropout.p = 0.1
    with pytest.raises(NotImplementedError, match="dropout = 0.1"):
        ours.train()(batch(rng)[0])

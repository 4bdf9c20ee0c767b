"""Five models of transformers, tiny, with random weights; their source is the library's own."""

import torch
import transformers

SMALL = dict(
    vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=32,
)  # fmt: skip


def _tokens(length=8):
    return torch.randint(1, 60, (2, length))


def build_hf_llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **SMALL)).eval()


def inputs_hf_llama():
    return {"input_ids": _tokens(), "use_cache": False}


def build_hf_gpt2():
    config = transformers.GPT2Config(
        vocab_size=60, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


inputs_hf_gpt2 = inputs_hf_llama


def build_hf_bert():
    return transformers.BertModel(transformers.BertConfig(**SMALL)).eval()


def inputs_hf_bert():
    return {"input_ids": _tokens(), "attention_mask": torch.ones(2, 8, dtype=torch.long)}


def build_hf_t5():
    config = transformers.T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return transformers.T5ForConditionalGeneration(config).eval()


def inputs_hf_t5():
    return {"input_ids": _tokens(), "decoder_input_ids": _tokens(5), "use_cache": False}


def build_hf_mixtral():
    config = transformers.MixtralConfig(num_key_value_heads=2, num_local_experts=4, **SMALL)
    return transformers.MixtralForCausalLM(config).eval()


inputs_hf_mixtral = inputs_hf_llama

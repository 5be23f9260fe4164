"""Language models of transformers: encoders, decoders, encoder-decoders, mixtures of experts, state spaces."""

from __future__ import annotations

from typing import Any

from .small import DEFAULT, LENGTH, Builder, architecture, mask, tokens


def _reads(model: str, options: dict[str, Any] | None = None, **config: Any) -> Builder:
    return architecture(model, {"input_ids": tokens}, options, **config)


def _translates(model: str, **config: Any) -> Builder:
    return architecture(model, {"input_ids": tokens, "decoder_input_ids": tokens}, {"use_cache": False}, **config)


def _translates_unpadded(model: str, **config: Any) -> Builder:
    """With masks, which the model would otherwise leave out where it is traced."""
    masks = {"attention_mask": mask, "decoder_attention_mask": mask}
    return architecture(
        model, {"input_ids": tokens, "decoder_input_ids": tokens, **masks}, {"use_cache": False}, **config
    )


_NO_CACHE = {"use_cache": False}


def _writes(model: str, **config: Any) -> Builder:
    return architecture(model, {"input_ids": tokens}, _NO_CACHE, **config)


ENCODERS: dict[str, Builder] = {
    "albert": _reads("AlbertModel", embedding_size=16),
    "bert": _reads("BertModel"),
    "bert_generation": _reads("BertGenerationEncoder"),
    "bert_masked_lm": _reads("BertForMaskedLM"),
    "bert_classifier": _reads("BertForSequenceClassification"),
    "big_bird": _reads("BigBirdModel", attention_type="original_full"),
    "camembert": _reads("CamembertModel"),
    "canine": _reads(
        "CanineModel",
        num_hash_buckets=64,
        num_hash_functions=2,
        downsampling_rate=2,
        local_transformer_stride=4,
        upsampling_kernel_size=2,
    ),
    "convbert": _reads("ConvBertModel", embedding_size=32),
    "data2vec_text": _reads("Data2VecTextModel"),
    "deberta": _reads("DebertaModel"),
    "deberta_v2": _reads("DebertaV2Model"),
    "deberta_v2_relative": _reads(
        "DebertaV2Model", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=16
    ),
    "distilbert": _reads("DistilBertModel", dim=32, hidden_dim=64, n_layers=2, n_heads=4),
    "electra": _reads("ElectraModel", embedding_size=16),
    "ernie": _reads("ErnieModel"),
    "esm": _reads("EsmModel", pad_token_id=1, position_embedding_type="rotary"),
    "eurobert": _reads("EuroBertModel", pad_token_id=0),
    "flaubert": _reads("FlaubertModel", emb_dim=32, n_layers=2, n_heads=4),
    "fnet": _reads("FNetModel"),
    "funnel": _reads(
        "FunnelModel",
        num_hidden_layers=DEFAULT,
        block_sizes=[1, 1],
        n_head=4,
        d_head=8,
        d_inner=64,
        num_decoder_layers=1,
    ),
    "ibert": _reads("IBertModel"),
    "layoutlm": _reads("LayoutLMModel"),
    "lilt": _reads("LiltModel", hidden_size=48, channel_shrink_ratio=2),
    "longformer": _reads("LongformerModel", attention_window=8),
    "luke": _reads("LukeModel", entity_vocab_size=20, entity_emb_size=16),
    "megatron_bert": _reads("MegatronBertModel"),
    "mobilebert": _reads("MobileBertModel", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    "modernbert": _reads("ModernBertModel", local_attention=8, pad_token_id=0),
    "mpnet": _reads("MPNetModel"),
    "mra": _reads("MraModel"),
    "nomic_bert": _reads("NomicBertModel"),
    "nystromformer": _reads("NystromformerModel", num_landmarks=12, segment_means_seq_len=12),
    "perceiver": _reads(
        "PerceiverForMaskedLM",
        d_model=16,
        d_latents=32,
        num_latents=8,
        num_self_attends_per_block=2,
        max_position_embeddings=LENGTH,
        num_cross_attention_heads=4,
        num_self_attention_heads=4,
    ),
    "reformer": _reads(
        "ReformerModel",
        attention_head_size=8,
        attn_layers=["local", "local"],
        axial_pos_shape=[4, 3],
        axial_pos_embds_dim=[16, 16],
        local_attn_chunk_length=4,
        feed_forward_size=64,
        num_hashes=1,
        is_decoder=False,
    ),
    "rembert": _reads("RemBertModel", input_embedding_size=16, output_embedding_size=16),
    "roberta": _reads("RobertaModel"),
    "roberta_prelayernorm": _reads("RobertaPreLayerNormModel"),
    "roc_bert": _reads(
        "RoCBertModel",
        pronunciation_vocab_size=20,
        shape_vocab_size=20,
        pronunciation_embed_dim=8,
        shape_embed_dim=8,
        enable_pronunciation=False,
        enable_shape=False,
    ),
    "roformer": _reads("RoFormerModel", embedding_size=32),
    "splinter": _reads("SplinterModel"),
    "squeezebert": _reads(
        "SqueezeBertModel",
        q_groups=4,
        k_groups=4,
        v_groups=4,
        post_attention_groups=1,
        intermediate_groups=4,
        output_groups=4,
        embedding_size=32,
    ),
    "xlm": _reads("XLMModel", emb_dim=32, n_layers=2, n_heads=4),
    "xlm_roberta": _reads("XLMRobertaModel"),
    "xlnet": _reads("XLNetModel", max_position_embeddings=DEFAULT, d_inner=64, n_layer=2, n_head=4),
    "xmod": _reads("XmodModel", default_language="en", languages=["en"]),
    "yoso": _reads("YosoModel", use_expectation=True),
}

DECODERS: dict[str, Builder] = {
    "apertus": _writes("ApertusModel"),
    "arcee": _writes("ArceeModel"),
    "bart_decoder": _writes("BartForCausalLM"),
    "biogpt": _writes("BioGptModel"),
    "bitnet": _writes("BitNetModel"),
    "bloom": _writes("BloomModel", n_layer=2, n_head=4),
    "codegen": _writes("CodeGenModel", n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64),
    "cohere": _writes("CohereModel"),
    "cohere2": _writes("Cohere2Model", sliding_window=4),
    "cpmant": _writes(
        "CpmAntModel", dim_head=8, dim_ff=64, prompt_length=4, segment_types=4, position_bias_num_buckets=16
    ),
    "ctrl": _writes("CTRLModel", n_embd=32, n_layer=2, n_head=4, dff=64, n_positions=64),
    "diffllama": _writes("DiffLlamaModel"),
    "doge": _writes("DogeModel"),
    "ernie4_5": _writes("Ernie4_5Model"),
    "exaone4": _writes("Exaone4Model", sliding_window=4),
    "falcon": _writes("FalconModel", head_dim=DEFAULT, multi_query=True, new_decoder_architecture=False),
    "falcon_grouped": _writes("FalconModel", head_dim=DEFAULT, new_decoder_architecture=True, num_kv_heads=2),
    "falcon_alibi": _writes("FalconModel", head_dim=DEFAULT, alibi=True, multi_query=False),
    "gemma": _writes("GemmaModel"),
    "gemma2": _writes("Gemma2Model", sliding_window=4, query_pre_attn_scalar=8),
    "gemma3": _writes("Gemma3TextModel", sliding_window=4, query_pre_attn_scalar=8),
    "glm": _writes("GlmModel", pad_token_id=0),
    "glm4": _writes("Glm4Model", pad_token_id=0),
    "gpt2": _writes("GPT2Model", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "gpt2_lm": _writes("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "gpt2_classifier": _writes(
        "GPT2ForSequenceClassification", n_embd=32, n_layer=2, n_head=4, n_positions=64, pad_token_id=0
    ),
    "gpt_bigcode": _writes("GPTBigCodeModel", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "gpt_neo": _writes("GPTNeoModel", attention_types=[[["global", "local"], 1]], window_size=4),
    "gpt_neox": _writes("GPTNeoXModel", rotary_pct=0.5),
    "gpt_neox_japanese": _writes("GPTNeoXJapaneseModel", rotary_pct=0.5),
    "gptj": _writes("GPTJModel", n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64),
    "granite": _writes("GraniteModel"),
    "helium": _writes("HeliumModel"),
    "jais2": _writes("Jais2Model"),
    "llama": _writes("LlamaModel"),
    "llama_lm": _writes("LlamaForCausalLM"),
    "ministral": _writes("MinistralModel", sliding_window=4),
    "mistral": _writes("MistralModel", sliding_window=4),
    "modernbert_decoder": _writes("ModernBertDecoderModel", local_attention=8, pad_token_id=0),
    "mpt": _writes("MptModel", n_layers=2, n_heads=4, max_seq_len=64),
    "nanochat": _writes("NanoChatModel"),
    "nemotron": _writes("NemotronModel"),
    "olmo": _writes("OlmoModel"),
    "olmo2": _writes("Olmo2Model"),
    "olmo3": _writes("Olmo3Model", sliding_window=4),
    "openai_gpt": _reads("OpenAIGPTModel", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "opt": _writes("OPTModel", word_embed_proj_dim=32),
    "persimmon": _writes("PersimmonModel"),
    "phi": _writes("PhiModel", partial_rotary_factor=0.5),
    "phi3": _writes("Phi3Model", pad_token_id=0),
    "qwen2": _writes("Qwen2Model"),
    "qwen3": _writes("Qwen3Model"),
    "seed_oss": _writes("SeedOssModel"),
    "smollm3": _writes("SmolLM3Model", pad_token_id=0),
    "stablelm": _writes("StableLmModel", partial_rotary_factor=0.5),
    "starcoder2": _writes("Starcoder2Model"),
    "vaultgemma": _writes("VaultGemmaModel", sliding_window=4, query_pre_attn_scalar=8),
    "xglm": _writes("XGLMModel", attention_heads=4),
}

TRANSLATORS: dict[str, Builder] = {
    "bart": _translates("BartModel"),
    "bigbird_pegasus": _translates("BigBirdPegasusModel", attention_type="original_full"),
    "blenderbot": _translates("BlenderbotModel"),
    "blenderbot_small": _translates("BlenderbotSmallModel"),
    "fsmt": _translates("FSMTModel", langs=["en", "de"], src_vocab_size=128, tgt_vocab_size=128),
    "led": _translates("LEDModel", attention_window=4),
    "longt5": _translates_unpadded("LongT5Model", local_radius=3, global_block_size=4),
    "m2m_100": _translates("M2M100Model"),
    "marian": _translates("MarianModel", pad_token_id=0),
    "mbart": _translates("MBartModel"),
    "mt5": _translates("MT5Model"),
    "mvp": _translates("MvpModel"),
    "pegasus": _translates("PegasusModel"),
    "pegasus_x": _translates("PegasusXModel", num_global_tokens=4, block_size=4),
    "plbart": _translates("PLBartModel"),
    "prophetnet": _translates(
        "ProphetNetModel",
        num_hidden_layers=DEFAULT,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        ngram=2,
    ),
    "t5": _translates("T5Model"),
    "t5_lm": _translates("T5ForConditionalGeneration"),
    "t5_encoder": _reads("T5EncoderModel"),
    "umt5": _translates("UMT5Model"),
}

MIXTURES: dict[str, Builder] = {
    "deepseek_v2": _writes(
        "DeepseekV2Model",
        head_dim=DEFAULT,
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        n_shared_experts=1,
    ),
    "deepseek_v3": _writes(
        "DeepseekV3Model",
        head_dim=DEFAULT,
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        first_k_dense_replace=1,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
    ),
    "ernie4_5_moe": _writes("Ernie4_5_MoeModel", moe_num_experts=4, moe_k=2, moe_num_shared_experts=1),
    "glm4_moe": _writes("Glm4MoeModel", n_group=1, topk_group=1, first_k_dense_replace=1),
    "gpt_oss": _writes("GptOssModel", sliding_window=4),
    "granitemoe": _writes("GraniteMoeModel"),
    "jetmoe": _writes("JetMoeModel", kv_channels=8, num_key_value_heads=2),
    "mixtral": _writes("MixtralModel"),
    "nllb_moe": _translates("NllbMoeModel", encoder_sparse_step=1, decoder_sparse_step=1),
    "olmoe": _writes("OlmoeModel"),
    "phimoe": _writes("PhimoeModel"),
    "qwen2_moe": _writes("Qwen2MoeModel", shared_expert_intermediate_size=32),
    "qwen3_moe": _writes("Qwen3MoeModel"),
    "switch_transformers": _translates_unpadded(
        "SwitchTransformersModel", num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, expert_capacity=8
    ),
}

RECURRENCES: dict[str, Builder] = {
    "bamba": _writes(
        "BambaModel",
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_n_groups=1,
        attn_layer_indices=[1],
        mamba_chunk_size=4,
    ),
    "falcon_h1": _writes(
        "FalconH1Model",
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_d_ssm=64,
        mamba_n_groups=1,
        mamba_chunk_size=4,
    ),
    "falcon_mamba": _writes("FalconMambaModel", state_size=8, time_step_rank=4),
    "lfm2": _writes("Lfm2Model", layer_types=["conv", "full_attention"]),
    "mamba": _writes("MambaModel", state_size=8, time_step_rank=4),
    "mamba2": _writes("Mamba2Model", num_heads=8, head_dim=8, state_size=8, n_groups=1, chunk_size=4),
    "qwen3_next": _writes(
        "Qwen3NextModel",
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        shared_expert_intermediate_size=32,
    ),
    "recurrent_gemma": _writes(
        "RecurrentGemmaModel", lru_width=32, attention_window_size=8, block_types=["recurrent", "attention"]
    ),
    "rwkv": _writes("RwkvModel", attention_hidden_size=32, context_length=64),
    "xlstm": _writes("xLSTMModel", chunk_size=4, embedding_dim=32, num_blocks=2),
}

MODELS = {**ENCODERS, **DECODERS, **TRANSLATORS, **MIXTURES, **RECURRENCES}

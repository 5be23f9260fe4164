"""Audio models of transformers, and time series."""

from __future__ import annotations

from typing import Any

import torch

from .small import Builder, architecture, normal, tokens

_WAVES = {
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 2, 2],
    "conv_kernel": [10, 3, 3],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}


def _hears(model: str, **config: Any) -> Builder:
    return architecture(model, {"input_values": normal(2, 640)}, **{**_WAVES, **config})


MODELS: dict[str, Builder] = {
    "audio_spectrogram_transformer": architecture(
        "ASTModel",
        {"input_values": normal(2, 24, 16)},
        max_length=24,
        num_mel_bins=16,
        frequency_stride=8,
        time_stride=8,
    ),
    "encodec": architecture(
        "EncodecModel",
        {"input_values": normal(1, 1, 320)},
        num_filters=8,
        hidden_size=16,
        codebook_size=16,
        codebook_dim=16,
        num_lstm_layers=1,
        upsampling_ratios=[4, 2],
        num_residual_layers=1,
        target_bandwidths=[24.0],
        sampling_rate=24000,
    ),
    "data2vec_audio": _hears("Data2VecAudioModel", num_conv_pos_embeddings=2, conv_pos_kernel_size=5),
    "hubert": _hears("HubertModel"),
    "sew": _hears("SEWModel", squeeze_factor=2),
    "sew_d": _hears("SEWDModel", squeeze_factor=2, position_buckets=16, norm_rel_ebd="layer_norm"),
    "speech_to_text": architecture(
        "Speech2TextModel",
        {"input_features": normal(2, 24, 16), "decoder_input_ids": tokens},
        {"use_cache": False},
        input_feat_per_channel=16,
        num_mel_bins=16,
        conv_channels=16,
        max_source_positions=64,
        max_target_positions=64,
    ),
    "speecht5_hifigan": architecture(
        "SpeechT5HifiGan",
        {"spectrogram": normal(2, 12, 16)},
        model_in_dim=16,
        upsample_initial_channel=16,
        upsample_rates=[4, 2],
        upsample_kernel_sizes=[8, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
    ),
    "unispeech": _hears("UniSpeechModel"),
    "unispeech_sat": _hears("UniSpeechSatModel"),
    "wav2vec2": _hears("Wav2Vec2Model"),
    "wav2vec2_ctc": _hears("Wav2Vec2ForCTC"),
    "wav2vec2_stable": _hears("Wav2Vec2Model", do_stable_layer_norm=True, feat_extract_norm="layer"),
    "wav2vec2_bert": architecture(
        "Wav2Vec2BertModel",
        {"input_features": normal(2, 12, 16)},
        feature_projection_input_dim=16,
        conv_depthwise_kernel_size=5,
        left_max_position_embeddings=8,
        right_max_position_embeddings=4,
    ),
    "wav2vec2_conformer": _hears("Wav2Vec2ConformerModel", conv_depthwise_kernel_size=5),
    "wavlm": _hears("WavLMModel", num_buckets=16, max_bucket_distance=32),
    "whisper": architecture(
        "WhisperModel",
        {"input_features": normal(2, 16, 24), "decoder_input_ids": tokens},
        {"use_cache": False},
        num_mel_bins=16,
        max_source_positions=12,
        max_target_positions=16,
        pad_token_id=0,
    ),
    "whisper_lm": architecture(
        "WhisperForConditionalGeneration",
        {"input_features": normal(2, 16, 24), "decoder_input_ids": tokens},
        {"use_cache": False},
        num_mel_bins=16,
        max_source_positions=12,
        max_target_positions=16,
        pad_token_id=0,
    ),
    "moonshine": architecture(
        "MoonshineModel",
        {"input_values": normal(2, 2000), "decoder_input_ids": tokens},
        {"use_cache": False},
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        encoder_num_key_value_heads=4,
        decoder_num_key_value_heads=4,
    ),
    "patchtst": architecture(
        "PatchTSTForPrediction",
        {"past_values": normal(2, 24, 3)},
        context_length=24,
        prediction_length=6,
        num_input_channels=3,
        patch_length=4,
        patch_stride=4,
        num_targets=3,
    ),
    "patchtsmixer": architecture(
        "PatchTSMixerForPrediction",
        {"past_values": normal(2, 24, 3)},
        context_length=24,
        prediction_length=6,
        num_input_channels=3,
        patch_length=4,
        patch_stride=4,
    ),
    "timesfm_like_decision_transformer": architecture(
        "DecisionTransformerModel",
        {
            "states": normal(2, 5, 4),
            "actions": normal(2, 5, 3),
            "rewards": normal(2, 5, 1),
            "returns_to_go": normal(2, 5, 1),
            "timesteps": lambda: torch.arange(5).repeat(2, 1),
        },
        state_dim=4,
        act_dim=3,
        n_layer=2,
        n_head=4,
        n_positions=64,
        max_ep_len=16,
    ),
}

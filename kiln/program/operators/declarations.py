"""Facts about operators that torch's schemas and tags do not tell, declared by name.

A name is that of an operator of ATen (``index_add``), or of a function in Python that captured code records whole
(``cross_entropy`` of ``torch.nn.functional``), or of one overload (``bernoulli_.float``). A fact of ``name`` also holds
for its in-place form ``name_``. Where it is not certain that an operator lacks an unwelcome property (it draws random
numbers, it may raise), it is listed.
"""

from __future__ import annotations

from typing import Any


def names(*texts: str) -> frozenset[str]:
    return frozenset(name for text in texts for name in text.split())


# ---- Python's operators ---------------------------------------------------------------------------------------------

_BINARY = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_FORMS = (("{}", ""), ("{}_", ""), ("__{}__", ""), ("__r{}__", ""), ("i{}", "_"), ("__i{}__", "_"))
_UNARY = {"inv": "bitwise_not", "invert": "bitwise_not", "__invert__": "bitwise_not", "not_": "logical_not"}
_KEYWORDS = ("and", "or")  # the module operator spells their functions with an underscore
_NOT_IN_PLACE = ("matmul",)

ATEN_NAMES: dict[str, str] = _UNARY | {
    form.format(name): aten if name in _NOT_IN_PLACE else aten + ending
    for name, aten in _BINARY.items()
    for form, ending in _FORMS
    if form != "{}_" or name in _KEYWORDS
}
"""For names of Python's operators, in `operator` and as methods, the names of operators of ATen that do the same."""

# ---- random numbers -------------------------------------------------------------------------------------------------

# Besides those with torch's tag `nondeterministic_seeded`.
RANDOM = names(
    "dropout1d dropout2d dropout3d gumbel_softmax multi_head_attention_forward _native_multi_head_attention",
    "fractional_max_pool2d fractional_max_pool2d_with_indices _fractional_max_pool2d",
    "fractional_max_pool3d fractional_max_pool3d_with_indices _fractional_max_pool3d",
    "svd_lowrank pca_lowrank _svd_lowrank seed",
)

_DROPOUT = {"p": 0, "train": False, "training": False}
# Arguments with which an operator of those draws nothing.
DRAWS_NOTHING_WITH: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        names("dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout"), _DROPOUT
    ),
    "native_dropout": {"train": False},
    **dict.fromkeys(names("rrelu rrelu_with_noise"), {"training": False}),
    "scaled_dot_product_attention": {"dropout_p": 0},
    "multi_head_attention_forward": {"dropout_p": 0, "training": False},
}

# The layout of the result depends on which kernels of attention are allowed.
CHOOSES_ATTENTION_KERNEL = names(
    "scaled_dot_product_attention multi_head_attention_forward _native_multi_head_attention _fused_sdp_choice"
)

# Refuse a bias whose rows do not begin at multiples of some bytes: it is given to them as in eager, with its padding.
READS_STRIDES = names(
    "_efficient_attention_forward _efficient_attention_backward _scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward",
)

# ---- effects --------------------------------------------------------------------------------------------------------

# Change running statistics, in some calls, without a mark in the schema.
CHANGES_UNMARKED = names(
    "batch_norm instance_norm native_batch_norm cudnn_batch_norm miopen_batch_norm quantized_batch_norm",
    "_batch_norm_impl_index _batch_norm_with_update _native_batch_norm_legit batch_norm_update_stats",
    "batch_norm_gather_stats batch_norm_gather_stats_with_counts",
    "fused_moving_avg_obs_fake_quant _fused_moving_avg_obs_fq_helper",
)
IN_PLACE = names("setitem __setitem__")

# ---- tracing --------------------------------------------------------------------------------------------------------

# Ask for the form of a tensor: a trace answers, and records nothing.
ASKS_FORM = names(
    "sym_size.default sym_stride.default sym_numel.default sym_storage_offset.default is_contiguous.default",
    "is_contiguous.memory_format is_strides_like_format.default is_non_overlapping_and_dense.default size.default",
    "stride.default storage_offset.default dim.default numel.default",
)
# Give the size of a tensor as a number, in graphs.
GIVES_SIZE = names("sym_size.int sym_stride.int sym_storage_offset.default sym_numel.default")
# Give what they are given, or a view of all of it.
GIVES_ARGUMENT = names("detach.default alias.default lift.default lift_fresh.default")
# Give their argument's memory to their result, of which the schema says nothing: torch's own code writes through it.
HANDS_MEMORY_ON = names("_unsafe_view.default")
# Draw numbers in the order of memory, where their functional form goes by dimensions.
DRAWS_IN_MEMORY_ORDER = names("bernoulli_.float")
# Draw other numbers for memory with holes than for memory without.
DRAWS_OTHERWISE_WITH_HOLES = names("normal_.default")
# Have a derivative that looks at values, for complex results, to refuse a loss that is not well defined.
DERIVATIVE_READS_VALUES = names("linalg_eig.default _linalg_svd.default _linalg_eigh.default")
# Have an overload ``out`` that computes into the memory that it is given, without a copy.
COMPUTES_INTO_OUT = names("mm.default addmm.default bmm.default baddbmm.default addmv.default mv.default")
# Give zeros and ones.
GIVES_BITS = names("bernoulli")
# Make memory whose content is undefined.
UNWRITTEN = names("empty empty_like empty_strided empty_permuted new_empty new_empty_strided")
COUNTS_FROM_STORAGE = names("as_strided as_strided_copy as_strided_scatter")
LIFTS = names("lift lift_fresh lift_fresh_copy")
FAITHFUL_IN_PYTHON = names("broadcast_tensors tensor_split pad_sequence one_hot unsafe_chunk empty")
ASSERTIONS = names("_assert_async _assert_scalar _assert_tensor_metadata")

# ---- exceptions -----------------------------------------------------------------------------------------------------

# Raise because of values. What raises because of shapes has raised on fake tensors already.
RAISES_ON_VALUES = names(
    # indices
    "index _unsafe_index _unsafe_masked_index _unsafe_masked_index_put_accumulate index_add index_copy index_fill",
    "index_put _unsafe_index_put _index_put_impl index_reduce index_select index_select_backward gather",
    "gather_backward _gather_sparse_backward scatter scatter_add scatter_reduce take take_along_dim put",
    "select select_backward select_copy select_scatter _nested_select_backward value_selecting_reduction_backward",
    "slice_scatter diagonal_scatter as_strided_scatter masked_scatter masked_scatter_backward masked_select",
    "masked_select_backward max_unpool1d max_unpool2d max_unpool3d unravel_index one_hot repeat_interleave",
    "embedding embedding_backward embedding_dense_backward embedding_sparse_backward embedding_renorm embedding_bag",
    "_embedding_bag _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only",
    "_embedding_bag_per_sample_weights_backward _embedding_bag_sparse_backward",
    # losses
    "nll_loss nll_loss_backward nll_loss_forward nll_loss_nd nll_loss2d nll_loss2d_backward nll_loss2d_forward",
    "cross_entropy cross_entropy_loss linear_cross_entropy binary_cross_entropy binary_cross_entropy_backward",
    "binary_cross_entropy_with_logits ctc_loss _ctc_loss _ctc_loss_backward _cudnn_ctc_loss miopen_ctc_loss",
    "_use_cudnn_ctc_loss _use_miopen_ctc_loss cosine_embedding_loss hinge_embedding_loss gaussian_nll_loss",
    "poisson_nll_loss huber_loss huber_loss_backward l1_loss mse_loss mse_loss_backward smooth_l1_loss",
    "smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward margin_ranking_loss multi_margin_loss",
    "multi_margin_loss_backward multilabel_margin_loss multilabel_margin_loss_backward",
    "multilabel_margin_loss_forward multilabel_soft_margin_loss triplet_margin_loss",
    "triplet_margin_with_distance_loss",
    # linear algebra
    "linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det linalg_diagonal linalg_eig linalg_eigh",
    "linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor",
    "linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex",
    "linalg_lu_solve linalg_matmul linalg_matrix_exp linalg_matrix_norm linalg_matrix_power linalg_matrix_rank",
    "linalg_multi_dot linalg_norm linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex",
    "linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander",
    "linalg_vecdot linalg_vector_norm linalg__powsum _linalg_check_errors _linalg_det _linalg_eigh _linalg_eigvals",
    "_linalg_slogdet _linalg_solve_ex _linalg_svd cholesky cholesky_inverse cholesky_solve _cholesky_solve_helper",
    "det logdet slogdet eig symeig geqrf orgqr ormqr qr inverse pinverse lstsq lu lu_solve lu_unpack _lu_with_info",
    "matrix_exp matrix_exp_backward matrix_power solve triangular_solve _spsolve svd svd_lowrank pca_lowrank",
    "_svd_lowrank",
    # distributions, counts, sequences, checks
    "bernoulli binomial multinomial poisson _sample_dirichlet _dirichlet_grad _standard_gamma _standard_gamma_grad",
    "normal.float_Tensor normal.Tensor_Tensor mvlgamma special_multigammaln bincount bucketize searchsorted",
    "histc histogram histogramdd _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors",
    "pad_sequence _pad_packed_sequence _assert_async _assert_scalar _assert_tensor_metadata",
    "_functional_assert_async _functional_assert_scalar _amp_foreach_non_finite_check_and_unscale",
    "_test_check_tensor fbgemm_pack_gemm_matrix_fp16 _wrapped_quantized_linear_prepacked",
)
# Raise on a zero among integers.
RAISES_ON_INTEGERS = names(
    "div divide floor_divide fmod remainder addcdiv divmod _foreach_div _foreach_addcdiv",
)
# Raise where an index is a tensor.
RAISES_ON_INDICES = names("getitem __getitem__ setitem __setitem__")

# Check indices in their kernels. On a GPU a wrong index stops the device, and nothing is raised at the call.
ASSERTS_ON_GPU = names(
    "getitem __getitem__ setitem __setitem__ index index_put index_select gather scatter scatter_add embedding",
    "nll_loss nll_loss_forward nll_loss_backward nll_loss_nd cross_entropy cross_entropy_loss",
)

# Refuse operands of several dtypes, which fake tensors accept: products, convolutions, normalizations, attention.
ONE_DTYPE = names(
    "matmul matmul_backward mm bmm addmm addbmm baddbmm addmv addr mv dot vdot outer ger einsum tensordot",
    "chain_matmul linear linear_backward linear_cross_entropy bilinear _trilinear linalg_matmul linalg_multi_dot",
    "linalg_vecdot _addmm_activation _foreach_mm _grouped_mm grouped_mm _scaled_grouped_mm scaled_grouped_mm",
    "_scaled_mm scaled_mm _int_mm _dyn_quant_matmul_4bit _mixed_dtypes_linear _weight_int4pack_mm",
    "_weight_int8pack_mm _wrapped_linear_prepack _wrapped_quantized_linear_prepacked mkldnn_linear",
    "mkldnn_linear_backward mkldnn_linear_backward_input mkldnn_linear_backward_weights",
    "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight",
    "fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight",
    "_cslt_sparse_mm _sparse_addmm _sparse_mm _sparse_semi_structured_addmm _sparse_semi_structured_linear",
    "_sparse_semi_structured_mm _sparse_sparse_matmul dsmm hsmm hspmm saddmm smm sparse_sampled_addmm spmm sspaddmm",
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc conv_tbc_backward",
    "conv_depthwise3d _conv_depthwise2d convolution _convolution _convolution_mode convolution_backward",
    "_convolution_double_backward convolution_overrideable convolution_backward_overrideable thnn_conv2d",
    "slow_conv3d slow_conv3d_forward _slow_conv2d_forward _slow_conv2d_backward slow_conv_dilated2d",
    "slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d _nnpack_spatial_convolution",
    "cudnn_convolution cudnn_convolution_add_relu cudnn_convolution_relu cudnn_convolution_transpose",
    "miopen_convolution miopen_convolution_add_relu miopen_convolution_relu miopen_convolution_transpose",
    "miopen_depthwise_convolution mkldnn_convolution mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight",
    "_mps_convolution _mps_convolution_transpose mps_convolution_backward mps_convolution_transpose_backward",
    "batch_norm batch_norm_backward batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt",
    "batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats",
    "_batch_norm_impl_index _batch_norm_impl_index_backward _batch_norm_no_update _batch_norm_with_update",
    "_batch_norm_with_update_functional _native_batch_norm_legit_functional normal log_normal",
    "native_batch_norm native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_no_training",
    "cudnn_batch_norm cudnn_batch_norm_backward miopen_batch_norm miopen_batch_norm_backward quantized_batch_norm",
    "instance_norm group_norm native_group_norm native_group_norm_backward layer_norm native_layer_norm",
    "native_layer_norm_backward rms_norm _fused_rms_norm _fused_rms_norm_backward local_response_norm",
    "_weight_norm _weight_norm_differentiable_backward _weight_norm_interface _weight_norm_interface_backward",
    "norm norm_except_dim native_norm frobenius_norm nuclear_norm renorm embedding_renorm _foreach_norm",
    "linalg_norm linalg_matrix_norm linalg_vector_norm",
    "scaled_dot_product_attention _scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward _triton_scaled_dot_attention",
)

# Need quantized tensors, or make some: fake tensors give plain ones instead.
QUANTIZED = names(
    "quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel dequantize int_repr q_scale q_zero_point",
    "q_per_channel_scales q_per_channel_zero_points q_per_channel_axis _make_per_tensor_quantized_tensor",
    "_make_per_channel_quantized_tensor _empty_affine_quantized _empty_per_channel_affine_quantized",
    "quantized_batch_norm quantized_gru quantized_gru_cell quantized_lstm quantized_lstm_cell quantized_max_pool1d",
    "quantized_max_pool2d quantized_max_pool3d quantized_rnn_relu_cell quantized_rnn_tanh_cell",
)

# ---- cost -----------------------------------------------------------------------------------------------------------

# One pass over memory without a sum. Operators with torch's tag `pointwise` need not be here.
CHEAP = names(
    "_to_copy to cat stack constant_pad_nd flip roll repeat tril triu copy fill full full_like zeros zeros_like ones",
    "ones_like new_zeros new_ones new_full arange eye scalar_tensor linspace slice_scatter select_scatter",
    "diagonal_scatter as_strided_scatter lift_fresh_copy glu hardswish log_sigmoid_forward _prelu_kernel",
    "floor_divide empty empty_like empty_strided empty_permuted new_empty complex polar expand_copy view_copy",
    "permute_copy convert_element_type iota broadcast_tensors",
)
# A few passes over memory, or many instructions for an element: a normalization along rows, a lookup.
PASSES = names(
    "native_layer_norm native_group_norm _fused_rms_norm _softmax _log_softmax native_batch_norm",
    "_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training",
    "embedding index index_select gather reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d",
    "replication_pad2d replication_pad3d upsample_nearest1d upsample_nearest2d upsample_nearest3d",
    "digamma lgamma polygamma igamma igammac mvlgamma erfinv special_airy_ai special_bessel_j0 special_bessel_j1",
    "special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u",
    "special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_entr special_erfcx",
    "special_hermite_polynomial_h special_hermite_polynomial_he special_i0 special_i0e special_i1 special_i1e",
    "special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0",
    "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtr special_ndtri",
    "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t",
    "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v",
    "special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py special_xlogy special_zeta",
    "special_digamma special_erf special_erfc special_erfinv special_exp2 special_expit special_expm1",
    "special_gammainc special_gammaincc special_gammaln special_log1p special_log_softmax special_logit",
    "special_logsumexp special_multigammaln special_polygamma special_psi special_round special_sinc special_softmax",
)
# What libraries compute, on GPUs at least: products, convolutions, attention, recurrent layers, Fourier transforms.
LIBRARY_CALLS = names(
    "mm addmm bmm baddbmm _scaled_mm _int_mm _addmm_activation convolution convolution_backward cudnn_convolution",
    "_cudnn_rnn _cudnn_rnn_backward miopen_convolution _fft_r2c _fft_c2r _fft_c2c",
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward",
    "_flash_attention_forward _flash_attention_backward _efficient_attention_forward _efficient_attention_backward",
)
# As cheap as a view, whatever the schema says.
LIKE_VIEWS = names("_unsafe_view _reshape_alias reshape contiguous")

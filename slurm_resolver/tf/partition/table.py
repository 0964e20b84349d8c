"""Which rule an operation has, by TensorFlow's name of its type.

An operation that is missing here is computed whole: that costs a gather of its inputs, and never
the result. Each entry is tested by its operation alone, on random parts.
"""

from __future__ import annotations

import functools
from typing import Callable

from slurm_resolver.tf.partition import indexing, moving, rules, slices
from slurm_resolver.tf.partition.operation import Operation
from slurm_resolver.tf.partition.values import Split

Rule = Callable[[Operation], Split]

BY_ENTRY = """
    Abs Acos Acosh Add AddN AddV2 Angle Asin Asinh Atan Atan2 Atanh BesselI0e BesselI1e Bitcast
    BitwiseAnd BitwiseOr BitwiseXor Cast Ceil CheckNumerics ClipByValue Complex ComplexAbs Conj Cos
    Cosh Digamma Div DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod
    Greater GreaterEqual Identity Igamma Igammac Imag Inv InvGrad Invert IsFinite IsInf IsNan
    LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot
    LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual Polygamma Pow
    PreventGradient Real RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift
    Rint Round Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh
    Snapshot Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square SquaredDifference
    StopGradient Sub Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta
"""
REDUCTIONS = "All Any ArgMax ArgMin EuclideanNorm Max Mean Min Prod Sum"
PRODUCTS = "BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul"
ALONG_GIVEN = "Cumprod Cumsum CumulativeLogsumexp ReverseV2"
PADS = "MirrorPad MirrorPadGrad Pad PadV2"
CHANGES = "TensorScatterAdd TensorScatterSub TensorScatterUpdate"

# The equations of operations, as `rules` describes them.
EQUATIONS = """
    AsString                            ...->...
    Bucketize                           ...->...
    StaticRegexReplace                  ...->...
    StringLength                        ...->...
    StringLower                         ...->...
    StringStrip                         ...->...
    StringToHashBucketFast              ...->...
    StringToNumber                      ...->...
    StringUpper                         ...->...

    FFT                                 ..._->..._
    IFFT                                ..._->..._
    IRFFT                               ..._->..._
    LogSoftmax                          ..._->..._
    RFFT                                ..._->..._
    Softmax                             ..._->..._
    TopKV2                              ..._->..._

    Cholesky                            ...__->...__
    FFT2D                               ...__->...__
    IFFT2D                              ...__->...__
    IRFFT2D                             ...__->...__
    LogMatrixDeterminant                ...__->...
    MatrixBandPart                      ...__->...__
    MatrixDeterminant                   ...__->...
    MatrixInverse                       ...__->...__
    RFFT2D                              ...__->...__
    AdjustContrastv2                    ...___->...___
    AdjustHue                           ..._->..._
    AdjustSaturation                    ..._->..._

    AvgPool                             N*->N*
    AvgPool3D                           N*->N*
    AvgPool3DGrad                       #,N*->N*
    AvgPoolGrad                         #,N*->N*
    Conv2D                              N*->N*
    Conv2DBackpropInput                 #,,N*->N*
    Conv3D                              N*->N*
    Conv3DBackpropInputV2               #,,N*->N*
    DepthToSpace                        N*->N*
    DepthwiseConv2dNative               N*->N*
    DepthwiseConv2dNativeBackpropInput  #,,N*->N*
    ExtractImagePatches                 N*->N*
    ImageProjectiveTransformV3          N*,N*->N*
    InTopKV2                            N*,N->N
    LRN                                 N*->N*
    MaxPool                             N*->N*
    MaxPool3D                           N*->N*
    MaxPool3DGrad                       N*,N*,N*->N*
    MaxPoolGrad                         N*,N*,N*->N*
    MaxPoolGradGrad                     N*,N*,N*->N*
    ResizeArea                          N*->N*
    ResizeBicubic                       N*->N*
    ResizeBilinear                      N*->N*
    ResizeBilinearGrad                  N*,N*->N*
    ResizeNearestNeighbor               N*->N*
    SoftmaxCrossEntropyWithLogits       N_,N_->N
    SpaceToDepth                        N*->N*
    SparseSoftmaxCrossEntropyWithLogits N_,N->N
"""
# Those of sums over rows.
SUMS = """
    Conv2DBackpropFilter                N*,,N*->
    Conv3DBackpropFilterV2              N*,,N*->
    DepthwiseConv2dNativeBackpropFilter N*,,N*->
    L2Loss                              ...->
"""


def _equations(text: str, *, adds: bool) -> dict[str, Rule]:
    """Returns the rules of the equations in a text."""
    words = text.split()
    return {
        kind: functools.partial(
            rules.by_equation,
            equation=equation,
            adds=adds,
        )
        for kind, equation in zip(words[::2], words[1::2])
    }


TABLE: dict[str, Rule] = {
    **_equations(EQUATIONS, adds=False),
    **_equations(SUMS, adds=True),
    **dict.fromkeys(BY_ENTRY.split(), rules.by_entry),
    **dict.fromkeys(REDUCTIONS.split(), rules.reduction),
    **dict.fromkeys(PRODUCTS.split(), rules.matrix_product),
    **dict.fromkeys(ALONG_GIVEN.split(), rules.along_given),
    **dict.fromkeys(PADS.split(), moving.pad),
    **{
        kind: functools.partial(
            indexing.at_places,
            indices=1,
            equation="T,P,E->T",
            adds=kind != "TensorScatterUpdate",
        )
        for kind in CHANGES.split()
    },
    "BiasAdd": rules.bias,
    "BiasAddGrad": rules.bias,
    "BroadcastTo": moving.repeated,
    "ConcatV2": moving.concatenate,
    "DenseBincount": rules.counted,
    "Einsum": rules.einsum,
    "ExpandDims": moving.expand,
    "Empty": moving.repeated,
    "Fill": moving.repeated,
    "GatherNd": functools.partial(
        indexing.at_places,
        indices=1,
        equation="T,P->E",
    ),
    "GatherV2": indexing.gather,
    "OneHot": lambda op: moving.inserted(op, op.attribute("axis")),
    "OnesLike": rules.shape_alone,
    "LookupTableFindV2": indexing.gather_of_variable,
    "MatrixDiagPartV3": lambda op: rules.combined(op, [-2, -1]),
    "MatrixDiagV3": rules.matrix_of_diagonal,
    "Pack": moving.pack,
    "Rank": rules.shape_alone,
    "Reshape": moving.reshape,
    "ResourceGather": indexing.gather_of_variable,
    "Roll": functools.partial(rules.along_given, place=2),
    "ScatterNd": functools.partial(
        indexing.at_places,
        indices=0,
        equation="P,E,#->T",
        adds=True,
    ),
    "Shape": rules.told_sizes,
    "ShapeN": rules.told_sizes,
    "Size": rules.told_sizes,
    "Slice": slices.slice_by_size,
    "SparseTensorDenseMatMul": rules.sparse_product,
    "Split": moving.split,
    "SplitV": moving.split,
    "Squeeze": moving.squeeze,
    "StridedSlice": slices.strided_slice,
    "StridedSliceGrad": slices.strided_slice_gradient,
    "Tile": moving.tile,
    "Transpose": moving.transpose,
    "Unpack": moving.unpack,
    "UnsortedSegmentSum": indexing.segment_sum,
    "ZerosLike": rules.shape_alone,
}
# These read the shape of a sum, and so do not put it together.
OF_SHAPE = frozenset(("OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"))
# These have rows although no input has: one entry is repeated for all of them.
REPEATED = frozenset(("BroadcastTo", "Fill"))
# All inputs may be whole: a product is divided again, with the rows of its first input.
DIVIDED_AGAIN = frozenset(("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul"))

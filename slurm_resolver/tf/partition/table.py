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
BY_ENTRY_OF_FIRST = """
    AsString Bucketize StaticRegexReplace StringLength StringLower StringStrip
    StringToHashBucketFast StringToNumber StringUpper
"""
REDUCTIONS = "All Any ArgMax ArgMin EuclideanNorm Max Mean Min Prod Sum"
PRODUCTS = "BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul"
ALONG_LAST = "FFT IFFT IRFFT LogSoftmax MatrixDiagV3 RFFT Softmax TopKV2"
OF_MATRICES = """
    Cholesky FFT2D IFFT2D IRFFT2D LogMatrixDeterminant MatrixBandPart MatrixDeterminant
    MatrixDiagPartV3 MatrixInverse RFFT2D
"""
ALONG_GIVEN = "Cumprod Cumsum CumulativeLogsumexp ReverseV2"
CHANGES = "TensorScatterAdd TensorScatterSub TensorScatterUpdate"

# The places of the inputs with rows, by operation.
WINDOWS = {
    "AdjustContrastv2": (0,),
    "AdjustHue": (0,),
    "AdjustSaturation": (0,),
    "AvgPool": (0,),
    "AvgPool3D": (0,),
    "Conv2D": (0,),
    "Conv2DBackpropFilter": (0, 2),
    "Conv3D": (0,),
    "Conv3DBackpropFilterV2": (0, 2),
    "DepthToSpace": (0,),
    "DepthwiseConv2dNative": (0,),
    "DepthwiseConv2dNativeBackpropFilter": (0, 2),
    "ExtractImagePatches": (0,),
    "FusedBatchNormV3": (0,),
    "ImageProjectiveTransformV3": (0, 1),
    "InTopKV2": (0, 1),
    "LRN": (0,),
    "MaxPool": (0,),
    "MaxPool3D": (0,),
    "MaxPool3DGrad": (0, 1, 2),
    "MaxPoolGrad": (0, 1, 2),
    "MaxPoolGradGrad": (0, 1, 2),
    "ResizeArea": (0,),
    "ResizeBicubic": (0,),
    "ResizeBilinear": (0,),
    "ResizeBilinearGrad": (0, 1),
    "ResizeNearestNeighbor": (0,),
    "SoftmaxCrossEntropyWithLogits": (0, 1),
    "SpaceToDepth": (0,),
    "SparseSoftmaxCrossEntropyWithLogits": (0, 1),
}
# The place of the input with rows, and of the one that is the shape of the result.
SIZED_WINDOWS = {
    "AvgPool3DGrad": (1, 0),
    "AvgPoolGrad": (1, 0),
    "Conv2DBackpropInput": (2, 0),
    "Conv3DBackpropInputV2": (2, 0),
    "DepthwiseConv2dNativeBackpropInput": (2, 0),
}

TABLE: dict[str, Rule] = {
    **dict.fromkeys(BY_ENTRY.split(), rules.by_entry),
    **dict.fromkeys(BY_ENTRY_OF_FIRST.split(), lambda op: rules.by_entry_of(op, 0)),
    **dict.fromkeys(REDUCTIONS.split(), rules.reduction),
    **dict.fromkeys(PRODUCTS.split(), rules.matrix_product),
    **dict.fromkeys(ALONG_LAST.split(), rules.along_last),
    **dict.fromkeys(OF_MATRICES.split(), functools.partial(rules.along_last, count=2)),
    **dict.fromkeys(ALONG_GIVEN.split(), rules.along_given),
    **{kind: functools.partial(rules.windows, data=data) for kind, data in WINDOWS.items()},
    **{
        kind: functools.partial(
            rules.windows,
            data=(data,),
            sized=sized,
        )
        for kind, (data, sized) in SIZED_WINDOWS.items()
    },
    "BiasAdd": rules.bias,
    "BiasAddGrad": rules.bias_gradient,
    "BroadcastTo": moving.broadcast,
    "ConcatV2": moving.concatenate,
    "DenseBincount": rules.counted,
    "Einsum": rules.einsum,
    "ExpandDims": moving.expand,
    "Fill": moving.fill,
    "GatherNd": functools.partial(
        indexing.at_places,
        indices=1,
        table=0,
    ),
    "GatherV2": indexing.gather,
    "L2Loss": rules.sum_of_all,
    "LookupTableFindV2": lambda op: rules.by_entry_of(op, 1),
    "MirrorPad": moving.pad,
    "MirrorPadGrad": moving.pad,
    "OneHot": rules.one_hot,
    "OnesLike": rules.shape_alone,
    "Pack": moving.pack,
    "Pad": moving.pad,
    "PadV2": moving.pad,
    "Rank": rules.rank_of,
    "Reshape": moving.reshape,
    "ResourceGather": indexing.gather_of_variable,
    "Roll": functools.partial(rules.along_given, place=2),
    "ScatterNd": functools.partial(
        indexing.at_places,
        indices=0,
        data=1,
        shape=2,
    ),
    "Shape": rules.told_sizes,
    "ShapeN": rules.told_sizes,
    "Size": rules.told_sizes,
    "Slice": slices.slice_by_size,
    "SparseTensorDenseMatMul": rules.sparse_product,
    "Split": functools.partial(
        moving.split,
        data=1,
        axes=0,
    ),
    "SplitV": functools.partial(
        moving.split,
        data=0,
        axes=2,
    ),
    "Squeeze": moving.squeeze,
    "StridedSlice": slices.strided_slice,
    "StridedSliceGrad": slices.strided_slice_gradient,
    **dict.fromkeys(
        CHANGES.split(),
        functools.partial(
            indexing.at_places,
            indices=1,
            table=0,
            data=2,
        ),
    ),
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

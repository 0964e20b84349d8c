"""Which rule an operation has, by TensorFlow's name of its type.

An operation that is missing here is computed whole: that costs a gather of its inputs, and never
the result. Each entry is tested by its operation alone, on random parts.
"""

from __future__ import annotations

import functools

import numpy as np

from slurm_resolver.tf.partition import indexing, moving, rules, slices, texts
from slurm_resolver.tf.partition.operation import RESULT, Rules
from slurm_resolver.tf.partition.values import SAME, names

BY_ENTRY = """
    Abs Acos Acosh Add AddN AddV2 Angle Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e BesselI1
    BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc
    Bitcast BitwiseAnd BitwiseOr BitwiseXor Cast Ceil CheckNumerics ClipByValue Complex
    ComplexAbs Conj Cos Cosh Dawsn Digamma Div DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp
    Expint Expm1 FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient Floor FloorDiv FloorMod
    FresnelCos FresnelSin Greater GreaterEqual Identity Igamma Igammac Imag Inv InvGrad Invert
    IsFinite IsInf IsNan LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p
    LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter
    NotEqual OnesLike Polygamma PopulationCount Pow PreventGradient Real RealDiv Reciprocal
    ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift Rint Round Rsqrt RsqrtGrad SelectV2
    Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Snapshot Softplus SoftplusGrad Softsign
    SoftsignGrad Spence Sqrt SqrtGrad Square SquaredDifference StopGradient Sub Tan Tanh
    TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy ZerosLike Zeta
"""

# The equations of operations, as `rules` describes them.
EQUATIONS = """
    AsString                            ...->...
    Bucketize                           ...->...
    RegexFullMatch                      ...->...
    RegexReplace                        ...->...
    StaticRegexFullMatch                ...->...
    StaticRegexReplace                  ...->...
    StringLength                        ...->...
    StringLower                         ...->...
    StringStrip                         ...->...
    StringToHashBucket                  ...->...
    StringToHashBucketFast              ...->...
    StringToHashBucketStrong            ...->...
    StringToNumber                      ...->...
    StringUpper                         ...->...
    UnicodeScript                       ...->...
    UnicodeTranscode                    ...->...

    Cross                               ..._,..._->..._
    FFT                                 ..._->..._
    HSVToRGB                            ..._->..._
    IFFT                                ..._->..._
    IRFFT                               ..._->..._
    LogSoftmax                          ..._->..._
    NthElement                          ..._->...
    RFFT                                ..._->..._
    RGBToHSV                            ..._->..._
    Softmax                             ..._->..._
    TopKV2                              ..._->..._

    AdjustContrastv2                    ...___->...___
    AdjustHue                           ..._->..._
    AdjustSaturation                    ..._->..._
    BandedTriangularSolve               ...__,...__->...__
    Cholesky                            ...__->...__
    CholeskyGrad                        ...__,...__->...__
    FFT2D                               ...__->...__
    FFT3D                               ...___->...___
    IFFT2D                              ...__->...__
    IFFT3D                              ...___->...___
    IRFFT2D                             ...__->...__
    IRFFT3D                             ...___->...___
    LogMatrixDeterminant                ...__->...
    Lu                                  ...__->..._
    MatrixBandPart                      ...__->...__
    MatrixDeterminant                   ...__->...
    MatrixInverse                       ...__->...__
    MatrixLogarithm                     ...__->...__
    MatrixSolve                         ...__,...__->...__
    MatrixSolveLs                       ...__,...__->...__
    MatrixSquareRoot                    ...__->...__
    MatrixTriangularSolve               ...__,...__->...__
    Qr                                  ...__->...__
    RFFT2D                              ...__->...__
    RFFT3D                              ...___->...___
    TridiagonalMatMul                   ...__,...__,...__,...__->...__
    TridiagonalSolve                    ...__,...__->...__

    AvgPool                             N*->N*
    AvgPool3D                           N*->N*
    AvgPool3DGrad                       #,N*->N*
    AvgPoolGrad                         #,N*->N*
    BiasAdd                             N*,->N*
    Conv2D                              N*->N*
    Conv2DBackpropInput                 #,,N*->N*
    Conv3D                              N*->N*
    Conv3DBackpropInputV2               #,,N*->N*
    DepthToSpace                        N*->N*
    DepthwiseConv2dNative               N*->N*
    DepthwiseConv2dNativeBackpropInput  #,,N*->N*
    Dilation2D                          N*,->N*
    Dilation2DBackpropInput             N*,,N*->N*
    DrawBoundingBoxesV2                 N*,N*->N*
    ExtractImagePatches                 N*->N*
    ExtractVolumePatches                N*->N*
    ImageProjectiveTransformV3          N*,N*->N*
    InTopKV2                            N*,N->N
    LRN                                 N*->N*
    LRNGrad                             N*,N*,N*->N*
    LowerBound                          A_,AB->AB
    MaxPool                             N*->N*
    MaxPool3D                           N*->N*
    MaxPool3DGrad                       N*,N*,N*->N*
    MaxPool3DGradGrad                   N*,N*,N*->N*
    MaxPoolGrad                         N*,N*,N*->N*
    MaxPoolGradGrad                     N*,N*,N*->N*
    ResizeArea                          N*->N*
    ResizeBicubic                       N*->N*
    ResizeBicubicGrad                   N*,N*->N*
    ResizeBilinear                      N*->N*
    ResizeBilinearGrad                  N*,N*->N*
    ResizeNearestNeighbor               N*->N*
    ResizeNearestNeighborGrad           N*->N*
    ScaleAndTranslate                   N*->N*
    ScaleAndTranslateGrad               N*,N*->N*
    Select                              N*,N*,N*->N*
    SoftmaxCrossEntropyWithLogits       N_,N_->N
    SpaceToDepth                        N*->N*
    SparseSoftmaxCrossEntropyWithLogits N_,N->N
    UpperBound                          A_,AB->AB

    BiasAddGrad                         N*->
    Conv2DBackpropFilter                N*,,N*->
    Conv3DBackpropFilterV2              N*,,N*->
    DepthwiseConv2dNativeBackpropFilter N*,,N*->
    Dilation2DBackpropFilter            N*,,N*->
    HistogramFixedWidth                 ...,,->
    L2Loss                              ...->
"""


# All others: the types of operations, and their rule.
RULES: Rules = {
    BY_ENTRY: rules.by_entry,
    "All Any ArgMax ArgMin EuclideanNorm Max Mean Min Prod Sum": rules.reduction,
    "Assert": lambda op: op.split((), SAME, *op.values[1:]),
    "BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul": rules.matrix_product,
    "BatchToSpaceND SpaceToBatchND": moving.to_blocks,
    "BroadcastTo Fill": moving.repeated,
    "ConcatV2": moving.concatenate,
    "Cumprod Cumsum CumulativeLogsumexp ReverseV2 Roll": lambda op: rules.combined(
        op, op.axes(len(op.values) - 1)
    ),
    "CudnnRNNBackpropV3 CudnnRNNV3": rules.recurrent_layer,
    "Einsum": lambda op: rules.by_equation(op, op.attribute("equation").decode(), adds=True),
    "EnsureShape": moving.ensured,
    "ExpandDims": lambda op: moving.inserted(op, *op.axes(1, RESULT)),
    "GatherNd": lambda op: indexing.at_places(op, 1, "T,P->E"),
    "GatherV2": indexing.gather,
    "LookupTableFindV2 ResourceGather": indexing.gather_of_variable,
    "MatrixDiagPartV3": lambda op: rules.diagonals(op, 1, "...__->...D"),
    "MatrixDiagV3": lambda op: rules.diagonals(op, 1, "...D->...__"),
    "MatrixSetDiagV3": lambda op: rules.diagonals(op, 2, "...__,...D->...__"),
    # Any axis but that of the rows can be padded.
    "MirrorPad MirrorPadGrad Pad PadV2": lambda op: rules.combined(
        op, np.flatnonzero(np.any(op.constant(1), axis=1)).tolist()
    ),
    "OneHot": lambda op: moving.inserted(op, op.attribute("axis")),
    "Pack": lambda op: moving.inserted(op, op.attribute("axis"), len(op.values)),
    "Reshape": moving.reshape,
    "ReverseSequence": rules.reversed_sequences,
    "ScatterNd": lambda op: indexing.at_places(op, 0, "P,E,#->T", adds=True),
    "Shape ShapeN Size": rules.told_sizes,
    "Slice": slices.slice_by_size,
    "SparseTensorDenseMatMul": rules.sparse_product,
    "Split SplitV": slices.split,
    # Without axes, it also removes that of a single row.
    "Squeeze": lambda op: rules.combined(
        op, op.attribute("squeeze_dims") or range(op.rank()), removed=True
    ),
    "StridedSlice": slices.strided_slice,
    "StridedSliceGrad": slices.strided_slice_gradient,
    "StringJoin Substr": rules.by_entry,
    "StringSplitV2": texts.split_texts,
    "TensorScatterAdd TensorScatterSub TensorScatterUpdate": lambda op: indexing.at_places(
        op, 1, "T,P,E->T", adds=op.kind != "TensorScatterUpdate"
    ),
    "Tile": moving.tile,
    "Transpose": moving.transpose,
    "Unpack": lambda op: rules.combined(op, [op.attribute("axis")], removed=True),
    "UnsortedSegmentSum": indexing.segment_sum,
}
TABLE: Rules = {kind: rule for kinds, rule in RULES.items() for kind in kinds.split()}
TABLE |= {
    # A result without axes has the sums of the rows.
    kind: functools.partial(rules.by_equation, equation=equation, adds=equation.endswith("->"))
    for kind, equation in (line.split() for line in EQUATIONS.split("\n") if line)
}
# These have rows although no input has: one entry is repeated for all of them.
REPEATED = names("BroadcastTo Fill")
# All inputs may be whole: a product is divided again, with the rows of its first input.
DIVIDED_AGAIN = names("Conv2D Conv3D DepthwiseConv2dNative MatMul")

"""TensorFlow's operations by what they do to the rows of a batch."""

from __future__ import annotations


def names(text: str) -> set[str]:
    """Returns the words of a text."""
    return set(text.split())


# Each entry of the result is an entry of an input, or a constant.
MOVING = names(
    """
    BatchToSpaceND BroadcastTo ConcatV2 DepthToSpace ExpandDims MatrixDiagPartV3
    MirrorPad Pack Pad PadV2 Reshape ReverseV2 Slice SpaceToBatchND SpaceToDepth Split SplitV
    Squeeze StridedSlice Tile Transpose Unpack
    """
)
# The result has a given shape, and is random or the same everywhere.
OF_SHAPE = names(
    """
    BroadcastTo Fill RandomStandardNormal RandomUniform RandomUniformInt StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformFullIntV2
    StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2
    StatelessTruncatedNormal StatelessTruncatedNormalV2 Tile TruncatedNormal
    """
)
# The result has the same rows, and is linear.
KEEPING = names(
    """
    Cast CheckNumerics Conj EnsureShape Identity Imag Neg PreventGradient Real Snapshot
    StopGradient
    """
)
# Each entry of the result is a function of the entries at its place.
ENTRIES = names(
    """
    Abs Acos Acosh Angle AsString Asin Asinh Atan Atan2 Atanh BesselI0e BesselI1e BitwiseAnd
    BitwiseOr BitwiseXor Bucketize Ceil ClipByValue ComplexAbs Cos Cosh Digamma Elu Equal Erf Erfc
    Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual Igamma Igammac Inv Invert IsFinite
    IsInf IsNan LeakyRelu LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr
    Maximum Minimum Mod MulNoNan Ndtri NextAfter NotEqual OnesLike Polygamma Pow Reciprocal
    RegexFullMatch RegexReplace Relu Relu6 RightShift Rint Round Rsqrt Select SelectV2 Selu Sigmoid
    Sign Sin Sinh Softplus Softsign Sqrt Square SquaredDifference StaticRegexReplace StringLength
    StringLower StringStrip StringToHashBucketFast StringToNumber StringUpper Tan Tanh TruncateDiv
    TruncateMod Xdivy Xlog1py Xlogy ZerosLike Zeta
    """
)
# Two inputs are compared, entry by entry.
COMPARING = names("Equal Greater GreaterEqual Less LessEqual NotEqual")
REDUCING = names("All Any ArgMax ArgMin EuclideanNorm Max Mean Min Prod Sum")
# Entries are combined along all axes but the first, which is that of the rows.
WINDOWS = names(
    """
    AvgPool AvgPool3D Conv Conv2D Conv3D DepthwiseConv2dNative Dilation2D LRN MaxPool MaxPool3D
    MaxPoolV2 ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor
    """
)
# The same; the second input has an entry for each row as well.
PAIRED_WINDOWS = names(
    """
    ImageProjectiveTransformV3 InTopKV2 SoftmaxCrossEntropyWithLogits
    SparseSoftmaxCrossEntropyWithLogits
    """
)
# The same; the rows are in the third input.
TRANSPOSED_WINDOWS = names(
    "Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput"
)
# Entries are combined along the last axis, or along the axis that the second input names.
ALONG_LAST_AXIS = names("BiasAdd FFT IFFT IRFFT LogSoftmax RFFT Softmax TopKV2")
ALONG_GIVEN_AXIS = names("Cumprod Cumsum CumulativeLogsumexp")
# Entries of all rows are combined.
COMBINING = names(
    """
    Bincount DenseBincount L2Loss ScatterNd SegmentMax SegmentMean SegmentMin SegmentSum
    TensorScatterAdd TensorScatterUpdate UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
    UnsortedSegmentSum
    """
)
# An element of a list is set or added.
SETTING = names("TensorListPushBack TensorListSetItem")
# The second input has the keys of a table of entries.
LOOKING_UP = names("LookupTableFindV2 ResourceGather")
MATRIX_PRODUCTS = names("BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul")
ADDING = names("Add AddN AddV2 Complex Sub")
DIVIDING = names("Div DivNoNan RealDiv")
# A sum over rows may be one of the inputs, if the others are the same everywhere, or sizes.
FACTORS = MATRIX_PRODUCTS | names("Einsum Mul")
# Sums over rows may be added to others, or put beside them.
JOINING = ADDING | names("ConcatV2 MatrixDiagPartV3 Pack PadV2 Select SelectV2")
LINEAR = (KEEPING | MOVING | names("Cumsum GatherV2 Mean Sum")) - JOINING
# Those that compute sizes of constants.
FOLDED = names(
    """
    Add AddV2 Cast ConcatV2 ExpandDims Fill FloorDiv FloorMod GatherV2 Identity Maximum Minimum Mul
    Neg Pack Prod Range Reshape Squeeze StridedSlice Sub Sum Unpack
    """
)
# Stateful ones whose result is the same in all workers if their inputs are: those that read
# variables and tables, and that count the random numbers which have been drawn.
STATEFUL = names(
    """
    LookupTableFindV2 ReadVariableOp ResourceGather RngReadAndSkip StatelessRandomGetAlg
    StatelessRandomGetKeyCounter VarHandleOp
    """
)

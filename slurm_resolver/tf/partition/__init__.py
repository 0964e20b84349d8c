"""Writes the graph of one process's step again, for a replica that computes some rows of the batch.

The step is traced as in one process: without a strategy, for an unknown number of rows. Then two
phases follow:

1. The *plan* says for each operation what it gets: a part of a tensor, or all of it. It also says
   which tensors the replicas put together, and when. Nothing is written.
2. The *emission* writes the operations in the order of the plan, once for each replica.

An operation that no rule of the table can divide gets whole inputs, and each replica computes all
of it. So a missing rule costs time, and never changes a result.

An example: a dense layer with its gradient. `x` has N rows of 6 numbers, and `w` is a variable.

    =============================== ============= ==============================================
    operation                       a replica has because
    =============================== ============= ==============================================
    y = MatMul(x, w)                ROWS          each row of `y` is computed of a row of `x`
    e = Sub(y, labels)              ROWS          both have the same rows
    loss = Mean(Square(e))          SUM           its rows' squares, divided by 6 · N, not 6 · n
    g = MatMul(x, e, transpose_a)   SUM           the rows are added up
    put together: loss, g           SAME          one collective takes both
    AssignSubVariableOp(w, rate·g)  SAME          as in one process, in each replica
    =============================== ============= ==============================================

If the step clipped `g` by its norm, the norm would be computed after the collective, of the whole
gradient. If it drew noise of the shape of `y`, each replica would draw all of it, and take the
places of its rows.

Read the modules in this order::

    values         what can be known of a tensor: SAME, ROWS, SUM or LIST; the words of the others
    inlining       the operations of a graph, and of the functions that it calls
    sizes          shapes and numbers of sizes, as symbols of the number of rows: scratch infers
                   them, and exactness says of which this is certain
    collectives    how replicas put tensors together
    creation       copies operations with other inputs
    emission       the steps of a plan, and the second phase, which writes it
    operation      an operation as a rule sees it
    table          which rule an operation has; rules, moving, indexing, slices, texts and lists
                   have them
    effects        operations with effects, and those that only the first replica computes
    plan           the first phase; control_flow plans and writes conditions and loops, and
                   row_loops those that compute each row by itself
    step           plans a traced function
"""

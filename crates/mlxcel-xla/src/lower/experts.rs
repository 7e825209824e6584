//! Experts of few tokens: only the matrices that are chosen are read. For many tokens the general form, which runs
//! every expert, reads each matrix once.

use mlxcel_ir::{Dim, Tensor, Type};

/// Whether fewer matrices are chosen than there are.
pub(super) fn are_few(types: &[Type]) -> bool {
    let chosen = mlxcel_ir::product(&types[2].shape).as_fixed();
    let all = types[1].shape[0].as_fixed();
    chosen.zip(all).is_some_and(|(chosen, all)| chosen < all)
}

/// `(x [t, 1 or k, in], w [experts, out, in], ids [t, k], bias?)` to `[t, k, out]`.
pub(super) fn linear<'g>(x: &[Tensor<'g>]) -> Tensor<'g> {
    let (tokens, w, ids) = (x[0], x[1], x[2]);
    let chosen = w.dequantize(tokens.dtype()).gather(ids, 0); // [t, k, out, in]
    let full: Vec<Dim> = vec![ids.dim(0), ids.dim(1), tokens.dim(2)];
    let y = tokens.broadcast(full).dot_general(chosen, &[(0, 0), (1, 1)], &[(2, 3)]);
    x.get(3).map_or(y, |bias| y + bias.cast(y.dtype()).gather(ids, 0))
}

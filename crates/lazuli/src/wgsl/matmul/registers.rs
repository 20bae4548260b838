//! Sums of products where each invocation reads what it needs: its tile, k by four, all in registers.

use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, ShaderType, min, named, word};
use super::shape::SumRun;
use super::{MatmulShader, operand_start, place, write_count, write_count_on};
use crate::kernel::AxisList;
use crate::target::variants::{Cols, K_BLOCK, K_UNROLL, Read, Share, Variant};

impl MatmulShader<'_> {
    /// Where the rows of `a` and the columns of `b` start. Those beyond the end are those at the end again; what
    /// becomes of them is not stored.
    pub fn write_operands(&self, shader: &mut Shader) {
        let &Variant { rows, cols, .. } = self.shape.variant;
        let a_start = operand_start(shader, "a", &self.matmul.a);
        shader.define("a_start", a_start);
        let team = self.shape.variant.team;
        match team {
            Share::SubgroupBroadcast(n) => self.write_subgroup_rows(shader, n),
            _ => self.write_rows(shader, rows),
        }
        let b = &self.matmul.b;
        let b_start = operand_start(shader, "b", b);
        let b_start = shader.define("b_start", b_start);
        for c in 0..cols.n_values() {
            let col = match (c, team) {
                (0, Share::Alone | Share::SplitK { .. } | Share::WorkgroupTile { .. }) => word("col"),
                _ => min(word("col") + 4 * c, self.number("col_end") - 4),
            };
            let at = place(shader, "b", "col", &b.cols, &col);
            let first = shader.define(format!("b{c}"), &b_start + at);
            if self.shape.b == Read::Blocks {
                self.block_steps(K_UNROLL).write_rows(shader, &format!("b{c}"), first);
                continue;
            }
            if b.cols.stride_in_fours().is_none() {
                // Columns of a four that lie on different lines of an image.
                for j in 1..cols.per_value() {
                    let beside = place(shader, "b", "col", &b.cols, &(&col + j));
                    shader.define(format!("b{c}_side{j}"), &b_start + beside - &first);
                }
            }
        }
        // How far the rows of a trip, or the columns of a four, are from the first. Multiplied in the loop, llvmpipe
        // would multiply for every lane.
        match (self.shape.b, b.cols.stride_in_fours(), b.rows.stride()) {
            (Read::AlongK, Some(by), _) => self.write_multiples(shader, "b_across", ("b_col", by), cols.per_value()),
            (Read::AlongK, None, _) | (Read::Blocks, ..) => {}
            (_, _, Some(by)) => self.write_multiples(shader, "b_down", ("b_row", by), K_UNROLL),
            _ => {}
        }
    }

    /// `{name}1`, `{name}2`, …: multiples of a stride, whose parameter has the name given with it.
    fn write_multiples(&self, shader: &mut Shader, name: &str, (param, by): (&str, isize), n: usize) {
        let by = shader.signed_param(param, by);
        (1..n).for_each(|i| drop(shader.define(format!("{name}{i}"), ShaderExpr::from(i) * &by)));
    }

    fn write_rows(&self, shader: &mut Shader, rows: usize) {
        let per = if self.shape.a == Read::Across { 4 } else { 1 };
        for r in (0..rows).step_by(per) {
            let row = if r == 0 { word("row") } else { min(word("row") + r, self.number("m") - per) };
            let at = place(shader, "a", "row", &self.matmul.a.rows, &row);
            shader.define(format!("a{r}"), word("a_start") + at);
        }
    }

    /// Sums of products along k: `all0_0`, `all0_1`, …, row by row of the tile.
    pub fn write_sums(&self, shader: &mut Shader) {
        let all = self.values("all");
        let [start, end] = self.write_range(shader);
        for (name, axis, list) in self.lists_along_k() {
            write_count(shader, name, axis, list);
        }
        self.declare(shader, &all);
        let rest = !self.matmul.k.is_multiple_of(K_UNROLL);
        let whole = match rest {
            true => &start + (&end - &start) / K_UNROLL * K_UNROLL,
            false => end.clone(),
        };
        let whole = shader.define("k_whole", whole);
        let n_trips = self.k_len().div_ceil(K_UNROLL);
        if self.shape.run != SumRun::Blocks {
            shader.open_for("k", &start, &whole, K_UNROLL, n_trips);
            self.write_products(shader, K_UNROLL, "all");
            shader.close();
        } else {
            let sums = self.values("sum");
            let n_blocks = self.k_len().div_ceil(K_BLOCK);
            let block = shader.open_for("block", start, &whole, K_BLOCK, n_blocks);
            self.declare(shader, &sums);
            let block_end = shader.define("block_end", min(&block + K_BLOCK, &whole));
            shader.open_for("k", &block, block_end, K_UNROLL, n_trips);
            self.write_products(shader, K_UNROLL, "sum");
            shader.close();
            all.iter().zip(sums).for_each(|(all, sum)| shader.add_to(all, sum));
            shader.close();
        }
        if rest {
            shader.open_for("k", &whole, end, 1, K_UNROLL - 1);
            self.write_products(shader, 1, "all");
            shader.close();
        }
    }

    /// The operands whose elements along k are found by counting through a list of axes.
    fn lists_along_k(&self) -> impl Iterator<Item = (&'static str, &'static str, &AxisList)> {
        let sides = [("a", "col", &self.matmul.a.cols), ("b", "row", &self.matmul.b.rows)];
        sides.into_iter().filter(|(_, _, list)| list.stride().is_none())
    }

    /// The products of `n` steps from `k` on.
    fn write_products(&self, shader: &mut Shader, n: usize, into: &str) {
        let &Variant { rows, cols, team, .. } = self.shape.variant;
        for (name, axis, list) in self.lists_along_k() {
            for i in 0..n {
                shader.define(format!("{name}_k{i}"), word(format!("{name}_at")));
                write_count_on(shader, name, axis, list);
            }
        }
        if let Share::SubgroupBroadcast(n_lanes) = team {
            return self.write_subgroup_products(shader, n_lanes, n, into);
        }
        let xs = self.write_a(shader, n);
        if self.shape.b == Read::AlongK && n > 1 {
            self.write_b_along_k(shader);
        }
        if self.shape.run == SumRun::Fours {
            (0..n).for_each(|i| self.write_row_of_b(shader, n, i));
            xs.iter().enumerate().for_each(|(r, x)| self.write_sum(shader, into, r, x));
            return;
        }
        for i in 0..n {
            self.write_row_of_b(shader, n, i);
            for (r, x) in xs.iter().enumerate().take(rows) {
                for c in 0..cols.n_values() {
                    shader.add_to(&self.value(into, r, c), &x[i] * self.value("y", c, i));
                }
            }
        }
    }

    /// The products of row `r` of the tile, one for each of its elements of `a`, added up before their sum is added to
    /// what is there: a fourth of the roundings, and where nothing multiplies and adds at once as many instructions.
    pub fn write_sum(&self, shader: &mut Shader, into: &str, r: usize, xs: &[ShaderExpr]) {
        for c in 0..self.shape.variant.cols.n_values() {
            let products = xs.iter().enumerate().map(|(i, x)| x * self.value("y", c, i));
            let sum = products.reduce(|sum, product| sum + product);
            sum.into_iter().for_each(|sum| shader.add_to(&self.value(into, r, c), sum));
        }
    }

    /// The tile's part of the row of `b` at step `i` of `n`.
    pub fn write_row_of_b(&self, shader: &mut Shader, n: usize, i: usize) {
        if self.shape.b == Read::Blocks {
            // All steps of a trip come with the first.
            if i == 0 {
                self.write_block_rows(shader, n);
            }
            return;
        }
        let down = self.matmul.b.rows.stride().map(|by| shader.signed_param("b_row", by));
        for c in 0..self.shape.variant.cols.n_values() {
            if let Some(down) = down.as_ref().filter(|_| i == 0 && (self.shape.b != Read::AlongK || n == 1)) {
                shader.define(format!("b{c}_k"), word(format!("b{c}")) + word("k") * down);
            }
            let value = self.value_of_b(shader, n, i, c);
            shader.define(format!("y{c}_{i}"), value);
        }
    }

    /// The tile's part of `n` rows of `b`, a weight in blocks.
    fn write_block_rows(&self, shader: &mut Shader, n: usize) {
        let steps = self.block_steps(n);
        for c in 0..self.shape.variant.cols.n_values() {
            let raw = steps.read(shader, &self.memory, 1, &format!("b{c}"), &word("k"));
            let name = |i: usize| format!("b{c}_raw{i}");
            let raw: Vec<ShaderExpr> =
                raw.into_iter().enumerate().map(|(i, raw)| shader.define(name(i), raw)).collect();
            let codes = steps.widen_scales(shader, &format!("b{c}"), &raw);
            for (i, y) in steps.widen_four(shader, &format!("b{c}_y"), &codes, 0).into_iter().enumerate() {
                shader.define(format!("y{c}_{i}"), y);
            }
        }
    }

    /// Reads the elements of `a` for `n` steps. Gives, per row of the tile, what it is at each step.
    fn write_a(&self, shader: &mut Shader, n: usize) -> Vec<Vec<ShaderExpr>> {
        let mut rows: Vec<Vec<ShaderExpr>> = Vec::new();
        // Four rows at once are read with the first of them.
        let mut fours: Vec<ShaderExpr> = Vec::new();
        for r in 0..self.shape.variant.rows {
            let row = match (self.shape.a, n) {
                (Read::AlongK, 2..) => {
                    let at = self.a_along_k(shader, r);
                    let value = self.memory.load4(shader, 0, at).reinterpreted(self.lane);
                    let value = shader.define(format!("x{r}"), value);
                    (0..n).map(|i| value.component(i)).collect()
                }
                (Read::Across, _) => {
                    if r % 4 == 0 {
                        fours.clear();
                        for i in 0..n {
                            let at = self.a_at(shader, r, i);
                            let value = self.memory.load4(shader, 0, at).reinterpreted(self.lane);
                            fours.push(shader.define(format!("x{r}_{i}"), value));
                        }
                    }
                    fours.iter().map(|four| four.component(r % 4)).collect()
                }
                _ => {
                    let mut one = |i: usize| {
                        let at = self.a_at(shader, r, i);
                        let value = self.memory.load(shader, 0, at).reinterpreted(self.lane);
                        shader.define(format!("x{r}_{i}"), value)
                    };
                    (0..n).map(&mut one).collect()
                }
            };
            rows.push(row);
        }
        rows
    }

    /// Where the element of `a` of row `r` of the tile is, `i` steps from `k` on.
    pub fn a_at(&self, shader: &mut Shader, r: usize, i: usize) -> ShaderExpr {
        let row = word(format!("a{r}"));
        match self.matmul.a.cols.stride() {
            Some(by) => row + word("k").plus(i) * shader.signed_param("a_col", by),
            None => row + word(format!("a_k{i}")),
        }
    }

    /// Where four elements of `a` from `k` on are, side by side.
    pub fn a_along_k(&self, shader: &mut Shader, r: usize) -> ShaderExpr {
        // The parameter is named as wherever `a` is read.
        self.matmul.a.cols.stride().iter().for_each(|by| drop(shader.signed_param("a_col", *by)));
        let k = if self.matmul.a.cols.stride().is_some() { "k" } else { "a_k0" };
        word(format!("a{r}")) + word(k)
    }

    /// Reads four steps of every column of the tile.
    pub fn write_b_along_k(&self, shader: &mut Shader) {
        let cols = self.shape.variant.cols;
        for c in 0..cols.n_values() {
            for j in 0..cols.per_value() {
                let k = if self.matmul.b.rows.stride().is_some() { "k" } else { "b_k0" };
                let first = word(format!("b{c}")) + word(k);
                let at = match (j, self.matmul.b.cols.stride_in_fours()) {
                    (0, _) => first,
                    (_, Some(_)) => first + word(format!("b_across{j}")),
                    (_, None) => first + word(format!("b{c}_side{j}")),
                };
                let value = self.memory.load4(shader, 1, at);
                shader.define(format!("w{c}_{j}"), value);
            }
        }
    }

    /// The elements of `b` at step `i` of `n`, for a value of the tile.
    fn value_of_b(&self, shader: &mut Shader, n: usize, i: usize, c: usize) -> ShaderExpr {
        let across = self.matmul.b.cols.stride_in_fours().map(|by| shader.signed_param("b_col", by));
        let at = match (self.matmul.b.rows.stride(), i) {
            (None, _) => word(format!("b{c}")) + word(format!("b_k{i}")),
            (_, 0) => word(format!("b{c}_k")),
            _ => word(format!("b{c}_k")) + word(format!("b_down{i}")),
        };
        let four = ShaderType::four(self.context.body.inputs[1].dtype().lane());
        let value = match self.shape.b {
            Read::Across => self.memory.load4(shader, 1, at),
            read => {
                let mut one = |j: usize| match (read, n, j, &across) {
                    (Read::AlongK, 2.., ..) => named(format!("w{c}_{j}"), four).component(i),
                    (_, _, 0, _) => self.memory.load(shader, 1, &at),
                    (_, _, _, Some(across)) => self.memory.load(shader, 1, &at + ShaderExpr::from(j) * across),
                    (_, _, _, None) => self.memory.load(shader, 1, &at + word(format!("b{c}_side{j}"))),
                };
                match self.shape.variant.cols {
                    Cols::One => one(0),
                    Cols::Fours(_) => four.make([0, 1, 2, 3].map(one)),
                }
            }
        };
        value.reinterpreted(self.lane)
    }
}

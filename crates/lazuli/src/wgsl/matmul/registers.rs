//! Sums of products where each invocation reads what it needs: its tile, k by four, all in registers. Several
//! invocations may share the sums of one tile: each then takes its part of every block of k, and they add up what they
//! have through workgroup memory.

use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, ShaderType, lane_name, named};
use super::variants::{Cols, K_BLOCK, K_UNROLL, Read, Share, Variant};
use super::{LANES, MatmulShader, operand_start, place, stride_in_fours, write_count, write_count_on};
use crate::kernel::AxisList;

impl MatmulShader<'_> {
    /// Where the rows of `a` and the columns of `b` start. Those beyond the end are those at the end again; what
    /// becomes of them is not stored.
    pub fn write_operands(&self, shader: &mut Shader) {
        let &Variant { rows, cols, .. } = self.shape.variant;
        let a_start = operand_start(shader, "a", &self.matmul.a);
        shader.line(format!("let a_start = {a_start};"));
        let team = self.shape.variant.team;
        match team {
            Share::SubgroupBroadcast(n) => self.write_subgroup_rows(shader, n),
            _ => self.write_rows(shader, rows),
        }
        let b_start = operand_start(shader, "b", &self.matmul.b);
        shader.line(format!("let b_start = {b_start};"));
        let b = &self.matmul.b;
        for c in 0..cols.n_values() {
            let col = match (c, team) {
                (0, Share::Alone | Share::SplitK(_) | Share::WorkgroupTile { .. }) => "col".to_string(),
                _ => format!("min(col + {}u, params.col_end - 4u)", 4 * c),
            };
            let at = place(shader, "b", "col", &b.cols, &col);
            shader.line(format!("let b{c} = b_start + {at};"));
            if stride_in_fours(&b.cols).is_none() {
                // Columns of a four that lie on different lines of an image.
                for j in 1..cols.per_value() {
                    let beside = place(shader, "b", "col", &b.cols, &format!("({col} + {j}u)"));
                    shader.line(format!("let b{c}_side{j} = b_start + {beside} - b{c};"));
                }
            }
        }
        // How far the rows of a trip, or the columns of a four, are from the first. Multiplied in the loop, llvmpipe
        // would multiply for every lane.
        match (self.shape.b, stride_in_fours(&b.cols), b.rows.stride()) {
            (Read::AlongK, Some(by), _) => self.write_multiples(shader, "b_across", ("b_col", by), cols.per_value()),
            (Read::AlongK, None, _) => {}
            (_, _, Some(by)) => self.write_multiples(shader, "b_down", ("b_row", by), K_UNROLL),
            _ => {}
        }
    }

    /// `{name}1`, `{name}2`, …: multiples of a stride, whose parameter has the name given with it.
    fn write_multiples(&self, shader: &mut Shader, name: &str, (param, by): (&str, isize), n: usize) {
        let by = shader.signed_param(param, by);
        (1..n).for_each(|i| shader.line(format!("let {name}{i} = {i}u * {by};")));
    }

    fn write_rows(&self, shader: &mut Shader, rows: usize) {
        let per = if self.shape.a == Read::Across { 4 } else { 1 };
        for r in (0..rows).step_by(per) {
            let row = if r == 0 { "row".to_string() } else { format!("min(row + {r}u, params.m - {per}u)") };
            let at = place(shader, "a", "row", &self.matmul.a.rows, &row);
            shader.line(format!("let a{r} = a_start + {at};"));
        }
    }

    /// Sums of products along k: `all0_0`, `all0_1`, …, row by row of the tile.
    pub fn write_sums(&self, shader: &mut Shader) {
        let value = self.value_type();
        let all = self.names("all");
        self.write_range(shader);
        for (name, axis, list) in self.lists_along_k() {
            write_count(shader, name, axis, list);
        }
        all.iter().for_each(|name| shader.line(format!("var {name} = {value}();")));
        let rest = !self.matmul.k.is_multiple_of(K_UNROLL);
        match rest {
            true => shader.line(format!("let k_whole = k_start + (k_end - k_start) / {K_UNROLL}u * {K_UNROLL}u;")),
            false => shader.line("let k_whole = k_end;"),
        }
        // How far apart the steps of one invocation are: others that share its sums take those between.
        let (lanes, first) = match self.shape.variant.team {
            Share::SplitK(n) => (n, " + k_lane"),
            _ => (1, ""),
        };
        let by_four = if lanes > 1 { format!(" + k_lane * {K_UNROLL}u") } else { String::new() };
        let (per_block, per_trip) = (K_BLOCK * lanes, K_UNROLL * lanes);
        let n_trips = self.k_len().div_ceil(per_trip);
        if self.shape.one_run {
            shader.open_loop(format!("for (var k = k_start{by_four}; k < k_whole; k += {per_trip}u)"), n_trips);
            self.write_products(shader, K_UNROLL, "all");
            shader.close();
        } else {
            let sums = self.names("sum");
            let n_blocks = self.k_len().div_ceil(per_block);
            shader.open_loop(format!("for (var block = k_start; block < k_whole; block += {per_block}u)"), n_blocks);
            sums.iter().for_each(|name| shader.line(format!("var {name} = {value}();")));
            shader.line(format!("let block_end = min(block + {per_block}u, k_whole);"));
            shader.open_loop(format!("for (var k = block{by_four}; k < block_end; k += {per_trip}u)"), n_trips);
            self.write_products(shader, K_UNROLL, "sum");
            shader.close();
            all.iter().zip(&sums).for_each(|(all, sum)| shader.line(format!("{all} += {sum};")));
            shader.close();
        }
        if rest {
            let n_left = (K_UNROLL - 1).div_ceil(lanes);
            shader.open_loop(format!("for (var k = k_whole{first}; k < k_end; k += {lanes}u)"), n_left);
            self.write_products(shader, 1, "all");
            shader.close();
        }
        if lanes > 1 {
            self.write_tree(shader, lanes);
        }
    }

    /// Adds up what the invocations have that share a tile; the first of them gets it.
    fn write_tree(&self, shader: &mut Shader, lanes: usize) {
        let group = self.shape.variant.group(self.context.target);
        shader.global(format!("var<workgroup> sh_sums: array<{}, {group}>;", self.value_type()));
        for name in self.names("all") {
            shader.line(format!("sh_sums[lane] = {name};"));
            // What everyone has is there.
            shader.line("workgroupBarrier();");
            let n_halves = lanes.ilog2() as usize;
            shader.open_loop(format!("for (var half = {}u; half > 0u; half /= 2u)", lanes / 2), n_halves);
            shader.line("if (k_lane < half) { sh_sums[lane] += sh_sums[lane + half]; }");
            shader.line("workgroupBarrier();");
            shader.close();
            shader.line(format!("{name} = sh_sums[lane];"));
            // The memory is free for the next.
            shader.line("workgroupBarrier();");
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
                shader.line(format!("let {name}_k{i} = {name}_at;"));
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
        if self.shape.one_run {
            (0..n).for_each(|i| self.write_row_of_b(shader, n, i));
            xs.iter().enumerate().for_each(|(r, x)| self.write_sum(shader, into, r, x));
            return;
        }
        for i in 0..n {
            self.write_row_of_b(shader, n, i);
            for (r, x) in xs.iter().enumerate().take(rows) {
                for c in 0..cols.n_values() {
                    shader.line(format!("{into}{r}_{c} += {} * y{c}_{i};", x[i]));
                }
            }
        }
    }

    /// The products of row `r` of the tile, one for each of its elements of `a`, added up before their sum is added to
    /// what is there: a fourth of the roundings, and where nothing multiplies and adds at once as many instructions.
    pub fn write_sum(&self, shader: &mut Shader, into: &str, r: usize, xs: &[String]) {
        for c in 0..self.shape.variant.cols.n_values() {
            let products: Vec<String> = xs.iter().enumerate().map(|(i, x)| format!("{x} * y{c}_{i}")).collect();
            shader.line(format!("{into}{r}_{c} += {};", products.join(" + ")));
        }
    }

    /// The tile's part of the row of `b` at step `i` of `n`.
    pub fn write_row_of_b(&self, shader: &mut Shader, n: usize, i: usize) {
        let down = self.matmul.b.rows.stride().map(|by| shader.signed_param("b_row", by));
        for c in 0..self.shape.variant.cols.n_values() {
            if let Some(down) = down.as_ref().filter(|_| i == 0 && (self.shape.b != Read::AlongK || n == 1)) {
                shader.line(format!("let b{c}_k = b{c} + k * {down};"));
            }
            let value = self.value_of_b(shader, n, i, c);
            shader.line(format!("let y{c}_{i} = {value};"));
        }
    }

    /// Reads the elements of `a` for `n` steps. Gives, per row of the tile, an expression for each step.
    fn write_a(&self, shader: &mut Shader, n: usize) -> Vec<Vec<String>> {
        let as_lane = |value: ShaderExpr| value.reinterpreted(self.lane);
        let mut rows = Vec::new();
        for r in 0..self.shape.variant.rows {
            let row = match (self.shape.a, n) {
                (Read::AlongK, 2..) => {
                    let at = self.a_along_k(shader, r);
                    let value = as_lane(self.memory.load4(shader, 0, &at));
                    shader.line(format!("let x{r} = {value};"));
                    (0..n).map(|i| format!("x{r}{}", LANES[i])).collect()
                }
                (Read::Across, _) => {
                    let first = r / 4 * 4;
                    for i in (0..n).filter(|_| r == first) {
                        let at = self.a_at(shader, r, i);
                        let value = as_lane(self.memory.load4(shader, 0, &at));
                        shader.line(format!("let x{r}_{i} = {value};"));
                    }
                    (0..n).map(|i| format!("x{first}_{i}{}", LANES[r % 4])).collect()
                }
                _ => {
                    for i in 0..n {
                        let at = self.a_at(shader, r, i);
                        let value = as_lane(self.memory.load(shader, 0, &at));
                        shader.line(format!("let x{r}_{i} = {value};"));
                    }
                    (0..n).map(|i| format!("x{r}_{i}")).collect()
                }
            };
            rows.push(row);
        }
        rows
    }

    /// Where the element of `a` of row `r` of the tile is, `i` steps from `k` on.
    pub fn a_at(&self, shader: &mut Shader, r: usize, i: usize) -> String {
        match self.matmul.a.cols.stride() {
            Some(by) => format!("a{r} + {} * {}", step(i), shader.signed_param("a_col", by)),
            None => format!("a{r} + a_k{i}"),
        }
    }

    /// Where four elements of `a` from `k` on are, side by side.
    pub fn a_along_k(&self, shader: &mut Shader, r: usize) -> String {
        // The parameter is named as wherever `a` is read.
        self.matmul.a.cols.stride().iter().for_each(|by| drop(shader.signed_param("a_col", *by)));
        if self.matmul.a.cols.stride().is_some() { format!("a{r} + k") } else { format!("a{r} + a_k0") }
    }

    /// Reads four steps of every column of the tile.
    pub fn write_b_along_k(&self, shader: &mut Shader) {
        let cols = self.shape.variant.cols;
        for c in 0..cols.n_values() {
            for j in 0..cols.per_value() {
                let k = if self.matmul.b.rows.stride().is_some() { "k" } else { "b_k0" };
                let at = match (j, stride_in_fours(&self.matmul.b.cols)) {
                    (0, _) => format!("b{c} + {k}"),
                    (_, Some(_)) => format!("b{c} + {k} + b_across{j}"),
                    (_, None) => format!("b{c} + {k} + b{c}_side{j}"),
                };
                let value = self.memory.load4(shader, 1, &at);
                shader.line(format!("let w{c}_{j} = {value};"));
            }
        }
    }

    /// The elements of `b` at step `i` of `n`, for a value of the tile.
    fn value_of_b(&self, shader: &mut Shader, n: usize, i: usize, c: usize) -> String {
        let across = stride_in_fours(&self.matmul.b.cols).map(|by| shader.signed_param("b_col", by));
        let at = match (self.matmul.b.rows.stride(), i) {
            (None, _) => format!("b{c} + b_k{i}"),
            (_, 0) => format!("b{c}_k"),
            _ => format!("b{c}_k + b_down{i}"),
        };
        let lane = self.context.body.inputs[1].lane();
        let four = self.shape.variant.cols != Cols::One;
        let text = match self.shape.b {
            Read::Across => self.memory.load4(shader, 1, &at).to_string(),
            read => {
                let one = |j: usize| match (read, n, j) {
                    (Read::AlongK, 2.., _) => format!("w{c}_{j}{}", LANES[i]),
                    (_, _, 0) => self.memory.load(shader, 1, &at).to_string(),
                    _ => match &across {
                        Some(across) => self.memory.load(shader, 1, &format!("{at} + {j}u * {across}")).to_string(),
                        None => self.memory.load(shader, 1, &format!("{at} + b{c}_side{j}")).to_string(),
                    },
                };
                let each: Vec<String> = (0..self.shape.variant.cols.per_value()).map(one).collect();
                if four { format!("vec4<{}>({})", lane_name(lane), each.join(", ")) } else { each.concat() }
            }
        };
        let ty = if four { ShaderType::four(lane) } else { ShaderType::One(lane) };
        named(text, ty).reinterpreted(self.lane).to_string()
    }
}

/// `k`, `i` steps on.
fn step(i: usize) -> String {
    if i == 0 { "k".to_string() } else { format!("(k + {i}u)") }
}

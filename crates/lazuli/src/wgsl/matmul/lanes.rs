//! Sums of products of few rows (GEMV), which several invocations share: each takes its part of k, straight from memory,
//! and they add up what they have: by subgroups where there are any, or through workgroup memory. Neighbours read vectors that
//! lie side by side: along a column of stored weights, or along a row of others.

use super::super::blocks::BlockCodes;
use super::super::butterfly::exchange;
use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, ShaderType, named, word};
use super::MatmulShader;
use crate::dtype::Lane;
use crate::target::variants::Read;

/// Writes a four of columns where it is used, and gives it.
type WriteColumns<'s> = Box<dyn Fn(&mut Shader) -> ShaderExpr + 's>;

impl MatmulShader<'_> {
    /// Sums of products along k: `all0_0`, `all1_0`, …, complete where `k_lane` is 0.
    pub fn write_lane_sums(&self, shader: &mut Shader, lanes: usize) {
        let [start, end] = self.write_range(shader);
        let trip = self.shape.k_trip;
        let rest = !self.matmul.k.is_multiple_of(trip);
        let whole = match rest {
            true => &start + (&end - &start) / trip * trip,
            false => end.clone(),
        };
        let whole = shader.define("k_whole", whole);
        self.write_vectors(shader);
        self.declare(shader, &self.values("all"));
        let k_lane = word("k_lane");
        let n_trips = self.k_len().div_ceil(trip * lanes);
        shader.open_for("k", start + &k_lane * trip, &whole, trip * lanes, n_trips);
        self.write_trip(shader);
        shader.close();
        if rest {
            let k = shader.open_for("k", whole + k_lane, end, lanes, (trip - 1).div_ceil(lanes));
            let ys = self.write_columns(shader, &k, "y");
            for r in 0..self.shape.variant.rows {
                let x = self.a_element(shader, r, &k);
                let x = if ys.len() > 1 { shader.define(format!("x{r}"), x) } else { x };
                ys.iter().enumerate().for_each(|(c, y)| shader.add_to(&self.value("all", r, c), &x * y));
            }
            shader.close();
        }
        match self.shape.shuffle {
            Some(near) => self.add_up_by_subgroups(shader, lanes, near),
            None => self.write_tree(shader, lanes),
        }
    }

    /// Fours of columns of a tile.
    fn n_fours(&self) -> usize {
        self.shape.variant.cols.n_values()
    }

    /// Where vectors lie, counted in vectors: rows of `a` and columns of `b` along k, or rows of `b`.
    fn write_vectors(&self, shader: &mut Shader) {
        if self.shape.a == Read::AlongK {
            for r in 0..self.shape.variant.rows {
                shader.define(format!("a_from{r}"), word(format!("a{r}")) >> self.log_vector(0));
            }
        }
        for c in 0..self.n_fours() {
            match self.shape.b {
                Read::AlongK => {
                    for j in 0..4 {
                        let column = self.beside(shader, c, &word(format!("b{c}")), j);
                        shader.define(of_four(c, &format!("b_from{j}")), column >> self.log_vector(1));
                    }
                }
                Read::Across => {
                    shader.define(of_four(c, "b_from"), word(format!("b{c}")) >> self.log_vector(1));
                    let by = self.matmul.b.rows.stride().unwrap_or(0);
                    shader.signed_param("b_row_vectors", by >> self.log_vector(1));
                }
                Read::Blocks | Read::Each => {}
            }
        }
    }

    /// The logarithm of how many elements are read at once.
    fn log_vector(&self, input: usize) -> usize {
        if self.shape.eights[input] { 3 } else { 2 }
    }

    /// The products of one trip. Loads come first, but what is packed is unpacked, and what a vector of `b` has many steps for is
    /// loaded of `a`, four steps at a time: so many registers there are.
    fn write_trip(&self, shader: &mut Shader) {
        let (k, n_steps) = (word("k"), self.shape.k_trip);
        shader.define("k_four", &k >> 2);
        match self.shape.b {
            Read::Blocks => (0..self.n_fours()).for_each(|c| self.read_blocks(shader, c)),
            Read::AlongK => {
                for (c, j) in (0..self.n_fours()).flat_map(|c| (0..4).map(move |j| (c, j))) {
                    self.read_along_k(shader, 1, &of_four(c, &format!("b_from{j}")));
                }
            }
            Read::Across if self.shape.eights[1] => {
                (0..n_steps).for_each(|i| self.read_eight_columns(shader, &k.plus(i), i))
            }
            Read::Across | Read::Each => {
                for i in 0..n_steps {
                    self.write_columns(shader, &k.plus(i), &format!("y{}_{}", i / 4, i % 4));
                }
            }
        }
        if self.shape.eights[0] {
            (0..self.shape.variant.rows).for_each(|r| self.read_along_k(shader, 0, &format!("a_from{r}")));
        }
        let codes: Vec<BlockCodes> = match self.shape.b {
            Read::Blocks => (0..self.n_fours()).map(|c| self.widen_scales(shader, c)).collect(),
            _ => Vec::new(),
        };
        (0..n_steps / 4).for_each(|f| self.write_four_steps(shader, f, &codes));
    }

    /// The products of four steps of a trip.
    fn write_four_steps(&self, shader: &mut Shader, f: usize, codes: &[BlockCodes]) {
        let rows = self.shape.variant.rows;
        let x = |r: usize| named(format!("x{f}_{r}"), ShaderType::four(self.lane));
        for r in 0..rows {
            let value = match self.shape.a {
                Read::AlongK => self.four_along_k(shader, 0, &format!("a_from{r}"), f),
                _ => {
                    let each = [0, 1, 2, 3].map(|i| self.a_element(shader, r, &word("k").plus(4 * f + i)));
                    ShaderType::four(self.lane).make(each)
                }
            };
            shader.define(x(r).to_string(), value);
        }
        for c in 0..self.n_fours() {
            for (i, y) in self.columns_of_four(shader, f, c, codes).into_iter().enumerate() {
                let y = y(shader);
                for r in 0..rows {
                    shader.add_to(&self.value("all", r, c), x(r).component(i) * &y);
                }
            }
        }
    }

    /// A four of columns of `b` at each of four steps of a trip, each written where it is used.
    fn columns_of_four<'s>(
        &'s self,
        shader: &mut Shader,
        f: usize,
        c: usize,
        codes: &[BlockCodes],
    ) -> [WriteColumns<'s>; 4] {
        let four = ShaderType::four(self.lane);
        match self.shape.b {
            Read::Blocks => {
                let steps = self.block_steps(self.shape.k_trip);
                let widened = steps.widen_four(shader, &of_four(c, "y"), &codes[c], f);
                widened.map(|y| Box::new(move |_: &mut Shader| y.clone()) as WriteColumns<'_>)
            }
            Read::AlongK => {
                let columns = [0, 1, 2, 3].map(|j| {
                    let value = self.four_along_k(shader, 1, &of_four(c, &format!("b_from{j}")), f);
                    shader.define(of_four(c, &format!("w{f}_{j}")), value)
                });
                [0, 1, 2, 3].map(|i| {
                    let y = four.make(columns.each_ref().map(|column| column.component(i)));
                    let name = of_four(c, &format!("y{f}_{i}"));
                    Box::new(move |shader: &mut Shader| shader.define(name.clone(), y.clone())) as Box<_>
                })
            }
            Read::Across if self.shape.eights[1] => [0, 1, 2, 3].map(|i| {
                Box::new(move |shader: &mut Shader| {
                    let words = named(format!("y{f}_{i}_words"), ShaderType::four(Lane::U32));
                    let value = self.memory.eight_of(shader, 1, &words)[c].reinterpreted(self.lane);
                    shader.define(of_four(c, &format!("y{f}_{i}")), value)
                }) as Box<_>
            }),
            Read::Across | Read::Each => [0, 1, 2, 3].map(|i| {
                let y = named(of_four(c, &format!("y{f}_{i}")), four);
                Box::new(move |_: &mut Shader| y.clone()) as Box<_>
            }),
        }
    }

    /// Reads the vectors of one trip of a weight in blocks.
    fn read_blocks(&self, shader: &mut Shader, c: usize) {
        let raw = self.block_steps(self.shape.k_trip).read(shader, &self.memory, 1, &format!("b{c}"), &word("k"));
        raw.into_iter().enumerate().for_each(|(i, raw)| drop(shader.define(format!("b{c}_raw{i}"), raw)));
    }

    /// Widens their scales.
    fn widen_scales(&self, shader: &mut Shader, c: usize) -> BlockCodes {
        let steps = self.block_steps(self.shape.k_trip);
        let types = steps.raw_types().into_iter().enumerate();
        let raw: Vec<ShaderExpr> = types.map(|(i, ty)| named(format!("b{c}_raw{i}"), ty)).collect();
        steps.widen_scales(shader, &of_four(c, "y"), &raw)
    }

    /// Reads the vectors along k of one trip from where they start, counted in vectors.
    fn read_along_k(&self, shader: &mut Shader, input: usize, from: &str) {
        for v in 0..self.shape.k_trip >> self.log_vector(input) {
            let vector = match self.shape.eights[input] {
                true => self.memory.load_vector(shader, input, word(from) + (word("k") >> 3).plus(v)),
                false => self.vector_along_k(shader, input, from, v),
            };
            shader.define(format!("{from}_words{v}"), vector);
        }
    }

    /// A vector of four elements along k.
    fn vector_along_k(&self, shader: &mut Shader, input: usize, from: &str, v: usize) -> ShaderExpr {
        let four = self.memory.load_four(shader, input, word(from) + word("k_four").plus(v));
        four.reinterpreted(self.lane)
    }

    /// Four elements along k of a trip: of vectors that were read, or read now.
    fn four_along_k(&self, shader: &mut Shader, input: usize, from: &str, f: usize) -> ShaderExpr {
        let words = |v: usize, lane: Lane| named(format!("{from}_words{v}"), ShaderType::four(lane));
        match (self.shape.eights[input], input) {
            (true, _) => self.memory.eight_of(shader, input, &words(f / 2, Lane::U32))[f % 2].reinterpreted(self.lane),
            (false, 0) => self.vector_along_k(shader, input, from, f),
            (false, _) => words(f, self.lane),
        }
    }

    /// Reads eight columns at one step, the `i`th of a trip.
    fn read_eight_columns(&self, shader: &mut Shader, k: &ShaderExpr, i: usize) {
        let at = word("b_from") + k * self.number("b_row_vectors");
        let words = self.memory.load_vector(shader, 1, at);
        shader.define(format!("y{}_{}_words", i / 4, i % 4), words);
    }

    /// Reads the columns of the tile at one step: `{name}`, `{name}_c1`, ….
    fn write_columns(&self, shader: &mut Shader, k: &ShaderExpr, name: &str) -> Vec<ShaderExpr> {
        let values = match self.shape.b == Read::Across && self.shape.eights[1] {
            true => {
                let at = word("b_from") + k * self.number("b_row_vectors");
                let words = self.memory.load_vector(shader, 1, at);
                let words = shader.define(format!("{name}_words"), words);
                self.memory.eight_of(shader, 1, &words).map(|four| four.reinterpreted(self.lane)).to_vec()
            }
            false => (0..self.n_fours()).map(|c| self.columns(shader, k, c)).collect(),
        };
        values.into_iter().enumerate().map(|(c, value)| shader.define(of_four(c, name), value)).collect()
    }

    /// An element of a row of `a`.
    fn a_element(&self, shader: &mut Shader, r: usize, k: &ShaderExpr) -> ShaderExpr {
        let by = self.matmul.a.cols.stride().unwrap_or(1);
        let at = word(format!("a{r}")) + k * shader.signed_param("a_col", by);
        self.memory.load(shader, 0, at).reinterpreted(self.lane)
    }

    /// A four of columns of `b` at one step.
    fn columns(&self, shader: &mut Shader, k: &ShaderExpr, c: usize) -> ShaderExpr {
        if self.shape.b == Read::Across {
            let at = word(of_four(c, "b_from")) + k * self.number("b_row_vectors");
            return self.memory.load_four(shader, 1, at).reinterpreted(self.lane);
        }
        let by = self.matmul.b.rows.stride().unwrap_or(1);
        let first = word(format!("b{c}")) + k * shader.signed_param("b_row", by);
        let each = [0, 1, 2, 3].map(|j| {
            let at = self.beside(shader, c, &first, j);
            self.memory.load(shader, 1, at).reinterpreted(self.lane)
        });
        ShaderType::four(self.lane).make(each)
    }

    /// Where column `j` of a four is, whose first is here.
    fn beside(&self, shader: &mut Shader, c: usize, first: &ShaderExpr, j: usize) -> ShaderExpr {
        match (j, self.matmul.b.cols.stride_in_fours()) {
            (0, _) => first.clone(),
            (_, Some(by)) => first + shader.signed_param("b_col", by).times(j),
            (_, None) => first + word(format!("b{c}_side{j}")),
        }
    }

    /// Adds up what the invocations have that share a tile, of which so many are sure to be in one subgroup; the first of them gets
    /// it. What subgroups have added up meets in workgroup memory, and the first of them adds that up. In which order depends on
    /// the schedule alone and not on how large subgroups turn out to be.
    fn add_up_by_subgroups(&self, shader: &mut Shader, lanes: usize, near: usize) {
        let target = self.context.target;
        let n_beside = self.shape.variant.group(target) / lanes;
        let n_parts = lanes / near;
        let add = |_: &mut Shader, x: &ShaderExpr, y: &ShaderExpr| x + y;
        let values = self.values("all");
        values.iter().for_each(|value| exchange(shader, value, near, n_beside, add));
        if n_parts == 1 {
            return;
        }
        let at_once = self.shape.variant.values_at_once(target).min(values.len());
        let shared = shader.shared_rows("sh_sums", [at_once, n_parts * n_beside], self.value_type());
        let k_lane = word("k_lane");
        let of_tile = |part: ShaderExpr| match n_beside {
            1 => part,
            _ => part * n_beside + word("lane") % n_beside,
        };
        for (i, values) in values.chunks(at_once).enumerate() {
            if i > 0 {
                // The memory is free for the next.
                shader.barrier();
            }
            shader.open_if((&k_lane % near).equals(0));
            let at = shader.define("part_at", of_tile(&k_lane / near));
            values.iter().enumerate().for_each(|(v, value)| shader.assign(&shared.at(v).at(&at), value));
            shader.close();
            // What every subgroup has is there.
            shader.barrier();
            // Whoever goes on is in the first subgroup, all of which takes part: each invocation adds up some of the parts.
            let n_side_by_side = n_parts.min(near);
            shader.open_if(word("subgroup").equals(0));
            let first = shader.define("first_part", of_tile(&k_lane % n_side_by_side));
            for (v, value) in values.iter().enumerate() {
                let row = shared.at(v);
                let parts =
                    (0..n_parts / n_side_by_side).map(|part| row.at(first.plus(part * n_side_by_side * n_beside)));
                let sum = parts.reduce(|sum, part| sum + part);
                sum.into_iter().for_each(|sum| shader.assign(value, sum));
                exchange(shader, value, n_side_by_side, n_beside, add);
            }
            shader.close();
        }
    }

    /// The same through workgroup memory, half of the invocations at a time.
    fn write_tree(&self, shader: &mut Shader, lanes: usize) {
        let target = self.context.target;
        let (group, at_once) = (self.shape.variant.group(target), self.shape.variant.values_at_once(target));
        let shared = shader.shared_rows("sh_sums", [at_once, group], self.value_type());
        let (lane, n_beside) = (word("lane"), group / lanes);
        let values = self.values("all");
        for (i, values) in values.chunks(at_once).enumerate() {
            if i > 0 {
                // The memory is free for the next.
                shader.barrier();
            }
            values.iter().enumerate().for_each(|(v, value)| shader.assign(&shared.at(v).at(&lane), value));
            // What everyone has is there.
            shader.barrier();
            for level in (0..lanes.ilog2()).rev() {
                let half = 1 << level;
                shader.open_if(word("k_lane").less(half));
                for v in 0..values.len() {
                    let row = shared.at(v);
                    shader.add_to(&row.at(&lane), row.at(&lane + half * n_beside));
                }
                shader.close();
                shader.barrier();
            }
            values.iter().enumerate().for_each(|(v, value)| shader.assign(value, shared.at(v).at(&lane)));
        }
    }
}

/// A name of the fours of columns of a tile, of which most have one.
fn of_four(c: usize, name: &str) -> String {
    if c == 0 { name.to_string() } else { format!("{name}_c{c}") }
}

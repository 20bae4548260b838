//! The curves of a run as an SVG that any browser opens: the loss of every step, and accuracies after each epoch.

use super::record::Record;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 50.0;

/// A place on the page from fractions of the axes.
fn point(x: f64, y: f64) -> String {
    let (w, h) = (WIDTH - 2.0 * MARGIN, HEIGHT - 2.0 * MARGIN);
    format!("{:.1},{:.1}", MARGIN + x * w, HEIGHT - MARGIN - y.clamp(0.0, 1.0) * h)
}

fn line(points: impl Iterator<Item = (f64, f64)>, colour: &str) -> String {
    let points: Vec<String> = points.map(|(x, y)| point(x, y)).collect();
    format!("<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>\n", points.join(" "))
}

/// A line with a dot at each point, so that a single one is seen, too.
fn dotted(points: &[(f64, f64)], colour: &str) -> String {
    let dot = |&(x, y): &(f64, f64)| {
        let place = point(x, y);
        let (x, y) = place.split_once(',').unwrap_or_default();
        format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>\n")
    };
    line(points.iter().copied(), colour) + &points.iter().map(dot).collect::<String>()
}

fn text(x: f64, y: f64, colour: &str, words: &str) -> String {
    format!(
        "<text x=\"{x:.0}\" y=\"{y:.0}\" fill=\"{colour}\" font-family=\"sans-serif\" font-size=\"12\">{words}</text>\n"
    )
}

/// The whole picture.
pub fn svg(record: &Record) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <polyline fill=\"none\" stroke=\"gray\" points=\"{} {} {}\"/>\n",
        point(0.0, 1.0),
        point(0.0, 0.0),
        point(1.0, 0.0),
    );
    let n = record.losses.len().max(1) as f64;
    let most = record.losses.iter().copied().filter(|l| l.is_finite()).fold(0.1, f32::max) as f64;
    // A running mean, thinned to about one point a pixel: single steps are noise.
    let mut mean = record.losses.first().copied().unwrap_or_default() as f64;
    let every = (record.losses.len() / 700).max(1);
    let mut smooth = Vec::new();
    for (i, loss) in record.losses.iter().enumerate() {
        mean += 0.05 * (*loss as f64 - mean);
        if i % every == 0 {
            smooth.push((i as f64 / n, mean / most));
        }
    }
    out += &line(smooth.into_iter(), "steelblue");
    out += &text(MARGIN, MARGIN - 24.0, "steelblue", &format!("loss, 0 to {most:.2}"));
    let n_epochs = record.epochs.len().max(1) as f64;
    // Accuracies from 90 to 100 %: below that there is little to see.
    let scaled = |accuracy: f32| (accuracy as f64 - 0.9) / 0.1;
    let at = |e: u64| e as f64 / n_epochs;
    let train: Vec<(f64, f64)> = record.epochs.iter().map(|e| (at(e.epoch), scaled(e.train_accuracy))).collect();
    let test: Vec<(f64, f64)> = record.epochs.iter().map(|e| (at(e.epoch), scaled(e.test_accuracy))).collect();
    out += &(dotted(&train, "darkorange") + &dotted(&test, "seagreen"));
    for part in [0.0, 0.5, 1.0] {
        let y = HEIGHT - MARGIN - part * (HEIGHT - 2.0 * MARGIN) + 4.0;
        out += &text(8.0, y, "steelblue", &format!("{:.2}", part * most));
        out += &text(WIDTH - MARGIN + 8.0, y, "seagreen", &format!("{:.0} %", 90.0 + 10.0 * part));
    }
    out += &text(MARGIN + 150.0, MARGIN - 24.0, "darkorange", "train accuracy, 90 to 100 %");
    if let Some(last) = record.epochs.last() {
        let words = format!("test accuracy, 90 to 100 %: {:.2} %", 100.0 * last.test_accuracy);
        out += &text(MARGIN + 340.0, MARGIN - 24.0, "seagreen", &words);
    }
    out += &text(WIDTH - MARGIN - 60.0, HEIGHT - MARGIN + 20.0, "gray", &format!("{} steps", record.losses.len()));
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_all_curves() {
        let mut record = Record::default();
        (0..2000).for_each(|i| record.step([64.0 / (1 + i) as f32, 32.0, 64.0]));
        record.end_epoch(1, 0.97, 1000.0);
        let picture = svg(&record);
        assert_eq!((picture.matches("<polyline").count(), picture.matches("<circle").count()), (4, 2));
        assert!(picture.contains("97.00 %") && picture.contains("2000 steps"));
        assert!(svg(&Record::default()).ends_with("</svg>\n"));
    }
}

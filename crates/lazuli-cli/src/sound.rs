//! WAV files as one channel of floats at the rate that a model wants. Integers of 8 to 32 bits and floats are read; a header is
//! believed only as far as the file goes.

use std::f64::consts::PI;
use std::path::Path;

/// A recording, its channels mixed to one.
#[derive(Debug)]
pub struct Sound {
    pub samples: Vec<f32>,
    /// Samples a second.
    pub rate: u32,
    /// How many channels were mixed.
    pub n_channels: usize,
}

impl Sound {
    /// Reads a WAV file.
    pub fn load(path: &Path) -> Result<Sound, String> {
        let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Sound::parse(&bytes).map_err(|message| format!("{}: {message}", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<Sound, String> {
        if bytes.get(..4) != Some(b"RIFF") || bytes.get(8..12) != Some(b"WAVE") {
            return Err("this is no WAV file".into());
        }
        let (mut at, mut form) = (12, None);
        while let Some(head) = bytes.get(at..at + 8) {
            let n_bytes = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
            // Programs that write to a pipe leave the size open: the chunk then goes to the end.
            let end = (at + 8).saturating_add(n_bytes).min(bytes.len());
            let chunk = &bytes[at + 8..end];
            match &head[..4] {
                b"fmt " => form = Some(Form::parse(chunk)?),
                b"data" => return form.ok_or("the samples come before their format")?.mixed(chunk),
                _ => {}
            }
            // Chunks begin at even places.
            at = end + n_bytes % 2;
        }
        Err("there are no samples".into())
    }

    /// The samples at another rate: each new one is a weighted sum of old ones, the weights a sinc that ends below the lower of
    /// both rates' limits, windowed to sixteen zero crossings a side.
    pub fn resampled(&self, rate: u32) -> Vec<f32> {
        if rate == self.rate {
            return self.samples.clone();
        }
        let step = self.rate as f64 / rate as f64;
        let cutoff = (1.0 / step).min(1.0);
        let reach = 16.0 / cutoff;
        let n_new = (self.samples.len() as f64 / step).round() as usize;
        let sample = |i: usize| {
            let centre = i as f64 * step;
            let first = (centre - reach).ceil().max(0.0) as usize;
            let last = ((centre + reach).floor() as usize).min(self.samples.len().saturating_sub(1));
            let (mut sum, mut weights) = (0.0, 0.0);
            for k in first..=last {
                let away = k as f64 - centre;
                let angle = PI * cutoff * away;
                let sinc = if angle == 0.0 { 1.0 } else { angle.sin() / angle };
                let weight = sinc * (0.5 + 0.5 * (PI * away / reach).cos());
                sum += weight * self.samples[k] as f64;
                weights += weight;
            }
            if weights == 0.0 { 0.0 } else { (sum / weights) as f32 }
        };
        (0..n_new).map(sample).collect()
    }

    /// What was done to make it `rate`, for people to read; None if nothing was.
    pub fn changes(&self, rate: u32) -> Option<String> {
        let mixed = (self.n_channels > 1).then(|| format!("{} channels mixed to one", self.n_channels));
        let resampled = (rate != self.rate).then(|| format!("resampled from {} Hz to {rate} Hz", self.rate));
        let done: Vec<String> = mixed.into_iter().chain(resampled).collect();
        (!done.is_empty()).then(|| done.join(", "))
    }
}

/// How samples are stored.
#[derive(Clone, Copy)]
struct Form {
    is_float: bool,
    n_channels: usize,
    rate: u32,
    bits: u16,
}

impl Form {
    fn parse(chunk: &[u8]) -> Result<Form, String> {
        let short = |at: usize| chunk.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
        let (Some(tag), Some(n_channels), Some(low), Some(high), Some(bits)) =
            (short(0), short(2), short(4), short(6), short(14))
        else {
            return Err("the format of the samples is cut off".into());
        };
        // Of the extensible format the tag is the beginning of an identifier further on.
        let tag = if tag == 0xfffe { short(24).unwrap_or(tag) } else { tag };
        let rate = low as u32 | (high as u32) << 16;
        let is_known = matches!((tag, bits), (1, 8 | 16 | 24 | 32) | (3, 32 | 64));
        if !is_known || n_channels == 0 || rate == 0 {
            return Err(format!(
                "samples of format {tag} with {bits} bits, {n_channels} channels, {rate} Hz are not supported; integers of 8 \
                 to 32 bits and floats are"
            ));
        }
        Ok(Form { is_float: tag == 3, n_channels: n_channels as usize, rate, bits })
    }

    /// The mean of all channels.
    fn mixed(self, data: &[u8]) -> Result<Sound, String> {
        let n_bytes = self.bits as usize / 8;
        let frames = data.chunks_exact(n_bytes * self.n_channels);
        let mean = |frame: &[u8]| {
            let sum: f64 = frame.chunks_exact(n_bytes).map(|bytes| self.sample(bytes)).sum();
            (sum / self.n_channels as f64) as f32
        };
        Ok(Sound { samples: frames.map(mean).collect(), rate: self.rate, n_channels: self.n_channels })
    }

    /// A sample between −1 and 1.
    fn sample(self, bytes: &[u8]) -> f64 {
        let mut wide = [0u8; 8];
        wide[8 - bytes.len()..].copy_from_slice(bytes);
        match (self.is_float, bytes.len()) {
            (true, 4) => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as f64,
            (true, _) => f64::from_le_bytes(wide),
            // Bytes are unsigned, unlike all others.
            (false, 1) => (bytes[0] as f64 - 128.0) / 128.0,
            (false, _) => i64::from_le_bytes(wide) as f64 / 2f64.powi(63),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wav(tag: u16, n_channels: u16, rate: u32, bits: u16, data: &[u8]) -> Vec<u8> {
        let frame = n_channels * bits / 8;
        let mut bytes = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0".to_vec();
        bytes.extend(tag.to_le_bytes().iter().chain(&n_channels.to_le_bytes()).chain(&rate.to_le_bytes()));
        bytes.extend((rate * frame as u32).to_le_bytes().iter().chain(&frame.to_le_bytes()).chain(&bits.to_le_bytes()));
        // A chunk of odd size that is not understood.
        bytes.extend(b"LIST\x03\0\0\0abc\0data");
        bytes.extend((data.len() as u32).to_le_bytes().iter().chain(data));
        bytes
    }

    #[test]
    fn samples_of_every_width_are_read_and_channels_mixed() {
        let check = |tag: u16, n_channels: u16, bits: u16, data: &[u8], expect: &[f32]| {
            let sound = Sound::parse(&wav(tag, n_channels, 8000, bits, data)).expect("it is a WAV file");
            assert_eq!((sound.samples.as_slice(), sound.rate), (expect, 8000), "{tag} {bits}");
        };
        check(1, 1, 8, &[0, 128, 192], &[-1.0, 0.0, 0.5]);
        check(1, 1, 16, &[0, 0x80, 0, 0x40], &[-1.0, 0.5]);
        check(1, 1, 24, &[0, 0, 0x80, 0, 0, 0x40], &[-1.0, 0.5]);
        check(1, 1, 32, &[0, 0, 0, 0xc0], &[-0.5]);
        check(3, 1, 32, &0.25f32.to_le_bytes(), &[0.25]);
        check(3, 1, 64, &(-0.25f64).to_le_bytes(), &[-0.25]);
        check(1, 2, 16, &[0, 0x40, 0, 0], &[0.25]);
    }

    #[test]
    fn what_is_no_recording_is_an_error_that_says_why() {
        let check = |bytes: &[u8], words: &str| {
            let error = Sound::parse(bytes).expect_err("it is wrong");
            assert!(error.contains(words), "{error}");
        };
        check(b"RIFX", "no WAV file");
        check(b"RIFF\0\0\0\0WAVE", "no samples");
        check(&wav(85, 1, 8000, 16, &[]), "format 85 with 16 bits");
        check(&wav(1, 0, 8000, 16, &[]), "0 channels");
        let whole = wav(1, 1, 8000, 16, &[1, 2, 3, 4]);
        for end in 0..whole.len() {
            // A cut file is an error or shorter, never a panic.
            assert!(Sound::parse(&whole[..end]).map_or(0, |sound| sound.samples.len()) <= 2);
        }
    }

    #[test]
    fn a_tone_at_another_rate_is_the_same_tone() {
        let tone = |rate: u32| (0..rate / 4).map(move |i| (2.0 * PI * 440.0 * i as f64 / rate as f64).sin() as f32);
        for (from, to) in [(44_100, 16_000), (8_000, 16_000), (22_050, 16_000)] {
            let sound = Sound { samples: tone(from).collect(), rate: from, n_channels: 1 };
            let (found, expect): (Vec<f32>, Vec<f32>) = (sound.resampled(to), tone(to).collect());
            assert!(found.len().abs_diff(expect.len()) <= 1);
            // At both ends the window is cut off.
            let inner = 200..expect.len() - 200;
            let most = inner.map(|i| (found[i] - expect[i]).abs()).fold(0.0, f32::max);
            assert!(most < 2e-3, "{from} to {to}: {most}");
            assert_eq!(sound.changes(to), Some(format!("resampled from {from} Hz to {to} Hz")));
        }
        // What the lower rate cannot hold is gone: 7 kHz at 8 kHz would be heard as 1 kHz.
        let high: Vec<f32> = (0..4000).map(|i| (2.0 * PI * 7000.0 * i as f64 / 16_000.0).sin() as f32).collect();
        let low = Sound { samples: high, rate: 16_000, n_channels: 1 }.resampled(8_000);
        assert!(low[100..1900].iter().all(|sample| sample.abs() < 2e-3));
    }
}

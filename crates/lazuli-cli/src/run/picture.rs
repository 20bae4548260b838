//! Pictures as inputs of models: PNG files, resized to what a model declares, in the layout it has.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use lazuli::{Device, Interpolate, Interpolation, Tensor};
use lazuli_onnx::{Declared, Dim};

use super::Pixels;

/// Where the colours of a picture are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Before height and width, a plane each.
    Nchw,
    /// After height and width.
    Nhwc,
}

/// A picture of bytes, `[height, width, channels]` with one channel or three.
struct Picture {
    bytes: Vec<u8>,
    height: usize,
    width: usize,
    channels: usize,
}

/// A PNG file as the input that a model declares; `notes` gets a line for everything that was decided on the way.
pub fn input(
    path: &Path,
    declared: &Declared,
    pixels: &Pixels,
    device: &Device,
    notes: &mut Vec<String>,
) -> Result<Tensor, String> {
    let picture = Picture::load(path)?;
    let (layout, dims) = layout(declared, pixels.layout, notes)?;
    let [channels, height, width] = match layout {
        Layout::Nchw => [&dims[0], &dims[1], &dims[2]],
        Layout::Nhwc => [&dims[2], &dims[0], &dims[1]],
    };
    let channels = match channels {
        Dim::Size(n @ (1 | 3)) => *n,
        Dim::Size(n) => return Err(format!("`{declared}` has {n} channels in this layout; a picture has 1 or 3")),
        _ => 3,
    };
    let wanted = |declared: &Dim, asked: Option<usize>, own: usize| match declared {
        Dim::Size(n) => *n,
        _ => asked.unwrap_or(own),
    };
    let asked = pixels.size;
    let height = wanted(height, asked.map(|(_, height)| height), picture.height);
    let width = wanted(width, asked.map(|(width, _)| width), picture.width);
    if asked.is_some_and(|asked| asked != (width, height)) {
        return Err(format!("`{declared}` wants pictures of {width} × {height}, whatever --size says"));
    }
    let planes = picture.planes(channels, device);
    let planes = if (height, width) == (picture.height, picture.width) {
        planes
    } else {
        let (name, from) = (path.display(), (picture.width, picture.height));
        notes.push(format!("{name}: resized from {} × {} to {width} × {height}", from.0, from.1));
        planes
            .interpolate(&[height, width], &Interpolate { antialias: true, ..Interpolate::new(Interpolation::Linear) })
    };
    let is_bytes = matches!(declared.form, lazuli_onnx::Form::Tensor(elem) if !elem.is_float());
    let planes = match is_bytes {
        true if pixels.is_normalised() => {
            return Err(format!("`{declared}` takes whole numbers: --mean and --std are for floats"));
        }
        true => planes.round().clamp(0.0, 255.0),
        false => pixels.normalised(&planes, channels, device)?,
    };
    let image = match layout {
        Layout::Nchw => planes,
        Layout::Nhwc => planes.permute(&[1, 2, 0]),
    };
    Ok(if declared.dims.as_ref().is_some_and(|dims| dims.len() == 4) { image.unsqueeze(0) } else { image })
}

/// The layout that was asked for, or the one that follows from the only axis of size 3; and the sizes without the batch.
fn layout<'d>(
    declared: &'d Declared,
    asked: Option<Layout>,
    notes: &mut Vec<String>,
) -> Result<(Layout, &'d [Dim]), String> {
    let dims = match declared.dims.as_deref() {
        Some([_, dims @ ..]) if dims.len() == 3 => dims,
        Some(dims) if dims.len() == 3 => dims,
        _ => return Err(format!("`{declared}` is no input for a picture: those have 3 axes, or 4 with a batch")),
    };
    if let Some(layout) = asked {
        return Ok((layout, dims));
    }
    let is_three: Vec<bool> = dims.iter().map(|dim| *dim == Dim::Size(3)).collect();
    let guess = match is_three[..] {
        [true, false, false] => (Layout::Nchw, "nchw"),
        [false, false, true] => (Layout::Nhwc, "nhwc"),
        _ => {
            return Err(format!(
                "where colours are in `{declared}` does not follow from its sizes: say --layout nchw or --layout nhwc"
            ));
        }
    };
    notes.push(format!("`{declared}`: layout {}, because that axis is 3", guess.1));
    Ok((guess.0, dims))
}

impl Picture {
    fn load(path: &Path) -> Result<Picture, String> {
        let fault = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let file = File::open(path).map_err(|e| fault(&e))?;
        let mut decoder = png::Decoder::new(BufReader::new(file));
        // Palettes and packed bits become bytes, 16 bits become 8.
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().map_err(|e| fault(&e))?;
        let n_bytes = reader.output_buffer_size().ok_or_else(|| fault(&"the picture is too large"))?;
        let mut bytes = vec![0; n_bytes];
        let frame = reader.next_frame(&mut bytes).map_err(|e| fault(&e))?;
        bytes.truncate(frame.buffer_size());
        // Opacity is left out.
        let (stored, channels) = match frame.color_type {
            png::ColorType::Grayscale => (1, 1),
            png::ColorType::GrayscaleAlpha => (2, 1),
            png::ColorType::Rgb => (3, 3),
            png::ColorType::Rgba => (4, 3),
            png::ColorType::Indexed => return Err(fault(&"colours of a palette were not resolved")),
        };
        let bytes = bytes.chunks_exact(stored).flat_map(|pixel| &pixel[..channels]).copied().collect();
        Ok(Picture { bytes, height: frame.height as usize, width: frame.width as usize, channels })
    }

    /// Planes of f32, `[channels, height, width]`: grey is repeated for colours, colours are weighed for grey (ITU-R BT.601).
    fn planes(&self, channels: usize, device: &Device) -> Tensor {
        let shape = [self.height, self.width, self.channels];
        let planes = Tensor::from_slice(&self.bytes, shape, device).to_dtype(lazuli::DType::F32).permute(&[2, 0, 1]);
        match (self.channels, channels) {
            (1, 3) => planes.broadcast_to([3, self.height, self.width]),
            (3, 1) => {
                let weights = Tensor::from_slice(&[0.299f32, 0.587, 0.114], [3, 1, 1], device);
                planes.mul(&weights).sum(lazuli::keep(0))
            }
            _ => planes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazuli_onnx::{ElemType, Form};

    /// A picture of two rows and three columns: black, red, green, then blue, white, grey.
    fn written(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("six.png");
        let bytes = [0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255, 51, 51, 51];
        let mut encoder = png::Encoder::new(File::create(&path).expect("a file"), 3, 2);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().and_then(|mut writer| writer.write_image_data(&bytes)).expect("is written");
        path
    }

    fn declared(elem: ElemType, dims: &[usize]) -> Declared {
        let dims = dims.iter().map(|n| if *n == 0 { Dim::Any } else { Dim::Size(*n) }).collect();
        Declared { name: "x".into(), form: Form::Tensor(elem), dims: Some(dims) }
    }

    #[test]
    fn colours_are_where_the_model_has_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = written(folder.path());
        let read = |declared: Declared, pixels: Pixels| {
            let mut notes = Vec::new();
            let tensor = input(&path, &declared, &pixels, &Device::cpu(), &mut notes)?;
            let shape = tensor.shape().expect("a shape").to_vec();
            Ok::<_, String>((shape, tensor.to_dtype(lazuli::DType::F32).to_vec::<f32>().expect("numbers"), notes))
        };
        let red = [0.0, 1.0, 0.0, 0.0, 1.0, 0.2];
        let (shape, planes, notes) = read(declared(ElemType::F32, &[0, 3, 0, 0]), Pixels::default()).expect("it fits");
        assert_eq!((shape, &planes[..6], notes.len()), (vec![1, 3, 2, 3], &red[..], 1));
        let last = read(declared(ElemType::F32, &[0, 0, 3]), Pixels::default()).expect("it fits");
        assert_eq!((last.0, last.1.iter().step_by(3).copied().collect::<Vec<_>>()), (vec![2, 3, 3], red.to_vec()));
        // Bytes stay bytes.
        let bytes =
            read(declared(ElemType::U8, &[1, 3, 2, 3]), Pixels { layout: Some(Layout::Nchw), ..Pixels::default() });
        assert_eq!(bytes.expect("it fits").1[..6], [0.0, 255.0, 0.0, 0.0, 255.0, 51.0]);
        let scaled = Pixels { mean: vec![0.5], std: vec![0.5, 1.0, 1.0], ..Pixels::default() };
        let scaled = read(declared(ElemType::F32, &[0, 3, 0, 0]), scaled).expect("it fits");
        assert_eq!(scaled.1[..4], [-1.0, 1.0, -1.0, -1.0]);
        let grey = Pixels { layout: Some(Layout::Nchw), ..Pixels::default() };
        let grey = read(declared(ElemType::F32, &[1, 1, 2, 3]), grey).expect("it fits");
        assert!(grey.0 == [1, 1, 2, 3] && (grey.1[1] - 0.299).abs() < 1e-6 && (grey.1[4] - 1.0).abs() < 1e-6);
        // Resized to one pixel it is the mean of all.
        let one = read(declared(ElemType::F32, &[1, 3, 1, 1]), Pixels::default()).expect("it fits");
        assert!((one.1[0] - 2.2 / 6.0).abs() < 0.05, "{:?}", one.1);
        assert!(one.2[1].contains("resized from 3 × 2 to 1 × 1"), "{:?}", one.2);
        for (dims, words) in [
            (&[1, 3, 3, 3][..], "say --layout nchw or --layout nhwc"),
            (&[1, 0, 0, 0], "say --layout"),
            (&[1, 3], "is no input for a picture"),
        ] {
            let error = read(declared(ElemType::F32, dims), Pixels::default()).expect_err("it cannot be told");
            assert!(error.contains(words), "{error}");
        }
        let other = Pixels { size: Some((9, 9)), layout: Some(Layout::Nchw), ..Pixels::default() };
        let error = read(declared(ElemType::F32, &[1, 3, 2, 3]), other).expect_err("the model says another size");
        assert!(error.contains("wants pictures of 3 × 2, whatever --size says"), "{error}");
    }

    #[test]
    fn broken_pictures_are_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = written(folder.path());
        let bytes = std::fs::read(&path).expect("it was written");
        for end in [0, 8, 20, bytes.len() / 2, bytes.len() - 20] {
            std::fs::write(&path, &bytes[..end]).expect("is written");
            assert!(Picture::load(&path).is_err_and(|error| error.contains("six.png")), "{end}");
        }
    }
}

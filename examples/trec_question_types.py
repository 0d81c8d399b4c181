"""
Which layer settles first? Two attention layers on TREC questions
=================================================================

A question is to be told by the type of its answer (abbreviation, description, entity, human, location, number). Token
embeddings go through two tied attention layers,

    X <- [c I + softmax(X S_l X^T)] X,    S_l = W_l W_l^T / sqrt(r),    W_l of shape (d, r),    l = 1, 2,

are averaged over the tokens and read out linearly; everything is learned together, with AdamW on the cross-entropy.
Along the way the cosine similarity of each layer's S_l with its final value is recorded, with the accuracy. Where a
teacher of this kind is learned from Gaussian sequences, the theory says that the last layer is found first (Troiani,
Cui, Dandi, Krzakala and Zdeborova 2025, arXiv:2502.00901, whose experiment on real data this follows).

So it is here without skip connections, c = 0, the default: on three seeds layer 2 goes nine tenths of its way in 10
epochs, layer 1 in 28. (Similarities of positive semi-definite matrices start above 0; the way is from there to 1.) A
learning rate of 3e-4 in place of 1e-3 leaves a smaller lead, 15 epochs against 20, and c = 1 turns the order round,
31 epochs for layer 2 and 21 for layer 1.

Questions are short and the order of their words tells much of the type: learned embeddings of positions, added to
those of tokens, raise the test accuracy by two points, to 0.86 (`--no-positions` leaves them out; the layers keep
their order).

    python examples/trec_question_types.py DIRECTORY [--output FILE.png] [--seeds 3] [--skip 0] [--no-figure]

One seed takes 40 seconds on one core.

The data are not part of this project. DIRECTORY holds `train_5500.label` (5452 questions) and `TREC_10.label` (500) of
Li and Roth, "Learning question classifiers", COLING 2002, from the question classification page of the Cognitive
Computation Group, https://cogcomp.seas.upenn.edu/Data/QA/QC/. A line is `DESC:manner How did serfdom develop in and
then leave Russia ?`: coarse type, fine type (not used), question, in latin-1.

PyTorch is needed: pip install "sklearn-aim[torch]".
"""

import argparse
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sklearn_aim.plotting import figure_style

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    # questions can be read without it
    torch = None

TRAINING_FILE, TEST_FILE = "train_5500.label", "TREC_10.label"
SOURCE = "https://cogcomp.seas.upenn.edu/Data/QA/QC/"
PADDING, UNKNOWN = 0, 1
# tokens seen once are taken for unknown ones: their embedding is what stands for new tokens of the test questions
MIN_COUNT = 2
N_LAYERS = 2
# of the initial embeddings of positions, beside 1 of those of tokens
POSITION_STD = 0.3
# records before the end of the second epoch, where most of the change may happen, in epochs; then one an epoch
EARLY = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 5 / 4, 3 / 2, 7 / 4)
# of the way of a layer's similarity from its initial value to 1
SETTLED = (0.5, 0.9)
COLOURS = ("#D55E00", "#004D7A")


def tokenise(text):
    """Lower-case words and single punctuation marks of a text, a list of str."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


def read_questions(path):
    """Coarse types, a list of str, and tokens, a list of lists of str, of the questions in a file."""
    types, questions = [], []
    with open(path, encoding="latin-1") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            match = re.fullmatch(r"([A-Za-z]+):\S+\s+(\S.*)", line.strip())
            if match is None:
                raise ValueError(f"{path}, line {number}: expected 'TYPE:subtype question', got {line.strip()[:60]!r}")
            types.append(match[1])
            questions.append(tokenise(match[2]))
    if not questions:
        raise ValueError(f"{path} holds no question")
    return types, questions


class Vocabulary:
    """Numbers of the tokens that occur at least `min_count` times in `questions`, most frequent first.

    0 is the padding, 1 stands for every other token.
    """

    def __init__(self, questions, min_count=MIN_COUNT):
        counts = Counter(token for question in questions for token in question)
        # ties by the alphabet, so that the order of the questions doesn't matter
        kept = sorted((token for token, count in counts.items() if count >= min_count), key=lambda t: (-counts[t], t))
        self.numbers = {token: number for number, token in enumerate(kept, UNKNOWN + 1)}

    def __len__(self):
        return len(self.numbers) + UNKNOWN + 1

    def encode(self, questions):
        """Token numbers, (n_questions, longest), padded on the right, and lengths, (n_questions,)."""
        lengths = np.array([len(question) for question in questions], dtype=np.int64)
        tokens = np.full((len(questions), lengths.max()), PADDING, dtype=np.int64)
        for row, question in zip(tokens, questions, strict=True):
            row[: len(question)] = [self.numbers.get(token, UNKNOWN) for token in question]
        return tokens, lengths


@dataclass(frozen=True)
class Questions:
    """Token numbers (n_questions, longest), lengths (n_questions,) and types (n_questions,), arrays of integers."""

    tokens: np.ndarray
    lengths: np.ndarray
    types: np.ndarray

    def batch(self, rows):
        """Token numbers, no wider than the longest question among the rows, lengths and types, as tensors."""
        lengths = self.lengths[rows]
        arrays = self.tokens[rows, : lengths.max()], lengths, self.types[rows]
        return [torch.from_numpy(array) for array in arrays]


@dataclass(frozen=True)
class Data:
    """Training and test questions, the vocabulary of the training file, and the names of its types in order."""

    training: Questions
    test: Questions
    vocabulary: Vocabulary
    names: list


def load(directory):
    """The two files of a directory."""
    directory = Path(directory)
    missing = [name for name in (TRAINING_FILE, TEST_FILE) if not (directory / name).is_file()]
    if missing:
        raise FileNotFoundError(f"no {' and no '.join(missing)} in {directory}; the files can be had at {SOURCE}")
    types, questions = read_questions(directory / TRAINING_FILE)
    test_types, test_questions = read_questions(directory / TEST_FILE)
    names = sorted(set(types))
    if len(names) < 2:
        raise ValueError(f"{directory / TRAINING_FILE} holds questions of one type only, {names[0]}")
    absent = sorted(set(test_types) - set(names))
    if absent:
        raise ValueError(f"{directory / TEST_FILE} has types that {TRAINING_FILE} has not: {', '.join(absent)}")
    vocabulary = Vocabulary(questions)
    training, test = (
        Questions(*vocabulary.encode(part), np.array([names.index(name) for name in part_types], dtype=np.int64))
        for part, part_types in ((questions, types), (test_questions, test_types))
    )
    return Data(training, test, vocabulary, names)


def require_torch():
    if torch is None:
        raise ModuleNotFoundError('PyTorch is missing: pip install "sklearn-aim[torch]"', name="torch")


class AttentionClassifier(torch.nn.Module if torch else object):
    """Embedding of tokens and positions, tied attention layers, mean over tokens, linear read-out.

    Parameters
    ----------
    n_words, n_types : int
        Sizes of the vocabulary, padding and unknown token included, and of the answer.
    dimension, rank : int
        d and r.
    n_positions : int
        Positions with an embedding of their own; later ones share the last. With 0 there are none, and the order of
        the words is not seen.
    n_layers : int
        Attention layers.
    skip : float
        c, the strength of the skip connections.
    seed : int
        Of the initial parameters.
    """

    def __init__(self, n_words, n_types, *, n_positions=0, dimension=128, rank=64, n_layers=N_LAYERS, skip=0.0, seed=0):
        require_torch()
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def gaussian(*shape, std):
            return torch.nn.Parameter(std * torch.randn(shape, generator=generator))

        self.skip = skip
        # unit variances of embeddings (n_words, d) and of the projections X W, W of shape (n_layers, d, r): tokens
        # attend to themselves at first, since the scores of two different ones are smaller by sqrt(r)
        self.embedding = gaussian(n_words, dimension, std=1)
        self.factors = gaussian(n_layers, dimension, rank, std=dimension**-0.5)
        self.readout = gaussian(dimension, n_types, std=dimension**-0.5)
        self.intercept = torch.nn.Parameter(torch.zeros(n_types))
        self.positions = gaussian(n_positions, dimension, std=POSITION_STD)

    def attend(self, X, mask, W):
        """One layer, X (n, T, d) to (n, T, d); no token attends to padding, where `mask` (n, T) is False."""
        projections = X @ W
        scores = projections @ projections.transpose(1, 2) / W.shape[1] ** 0.5
        weights = torch.softmax(scores.masked_fill(~mask[:, None, :], -torch.inf), dim=-1)
        return self.skip * X + weights @ X

    def forward(self, tokens, lengths):
        """Logits (n, n_types) of questions of token numbers (n, T) and lengths (n,)."""
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        X = torch.nn.functional.embedding(tokens, self.embedding)
        if len(self.positions):
            X = X + self.positions[torch.arange(tokens.shape[1]).clamp(max=len(self.positions) - 1)]
        for W in self.factors:
            X = self.attend(X, mask, W)
        # rows of padding have been carried along, and end here
        mean = (X * mask[:, :, None]).sum(dim=1) / lengths[:, None]
        return mean @ self.readout + self.intercept


def accuracy(model, questions, batch_size=512):
    """Share of questions of which the type is found."""
    found = 0
    with torch.no_grad():
        for start in range(0, len(questions.types), batch_size):
            tokens, lengths, types = questions.batch(slice(start, start + batch_size))
            found += int((model(tokens, lengths).argmax(dim=1) == types).sum())
    return found / len(questions.types)


def interactions(factors):
    """S = W W^T / sqrt(r), (..., d, d), of W (..., d, r)."""
    return factors @ np.swapaxes(factors, -1, -2) / np.sqrt(factors.shape[-1])


def similarity(A, B):
    """Frobenius inner product of matrices (..., d, d) over their norms, (...)."""

    def inner(A, B):
        return np.sum(A * B, axis=(-2, -1))

    return inner(A, B) / np.sqrt(inner(A, A) * inner(B, B))


@dataclass(frozen=True)
class Record:
    """What one training run went through.

    Attributes
    ----------
    epochs : ndarray of shape (n_records,)
        Times, from 0 on.
    factors : ndarray of shape (n_records, n_layers, d, r)
        W of every layer.
    training_accuracy, test_accuracy : ndarray of shape (n_records,)
        Shares of questions of which the type is found.
    """

    epochs: np.ndarray
    factors: np.ndarray
    training_accuracy: np.ndarray
    test_accuracy: np.ndarray

    @property
    def similarity(self):
        """Of every layer's S with its final value, (n_records, n_layers)."""
        final = interactions(self.factors[-1])
        # one record at a time: all S together are large
        return np.array([similarity(interactions(W), final) for W in self.factors])

    def settling(self, level):
        """Epochs until the similarity of a layer has gone `level` of its way to 1 for good, (n_layers,)."""
        way = self.similarity - self.similarity[0]
        # the last record has arrived, whatever its rounding
        short = way[:-1] < level * way[-1]
        return np.array([self.epochs[np.max(np.flatnonzero(layer), initial=-1) + 1] for layer in short.T])


def record_steps(steps_per_epoch, n_epochs):
    """Numbers of optimiser steps after which a record is taken, ascending."""
    early = {max(1, round(epoch * steps_per_epoch)) for epoch in EARLY if epoch < n_epochs}
    return sorted({0} | early | {epoch * steps_per_epoch for epoch in range(1, n_epochs + 1)})


def train(model, training, test, *, n_epochs=40, batch_size=32, learning_rate=1e-3, seed=0):
    """Train a model in place with AdamW on shuffled mini-batches; its Record."""
    rng = np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    n_questions = len(training.types)
    steps_per_epoch = -(-n_questions // batch_size)
    due = record_steps(steps_per_epoch, n_epochs)
    rows = []

    def take_record(step):
        # a copy: the optimiser works in place
        factors = model.factors.detach().numpy().astype(np.float64)
        if not np.isfinite(factors).all():
            raise FloatingPointError(
                f"training diverged by step {step}: take a smaller learning rate than {learning_rate}"
            )
        rows.append((step / steps_per_epoch, factors, accuracy(model, training), accuracy(model, test)))

    take_record(0)
    step = 0
    for _ in range(n_epochs):
        order = rng.permutation(n_questions)
        for start in range(0, n_questions, batch_size):
            tokens, lengths, types = training.batch(order[start : start + batch_size])
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(tokens, lengths), types).backward()
            optimiser.step()
            step += 1
            if step in due:
                take_record(step)
    return Record(*(np.array(column) for column in zip(*rows, strict=True)))


def run(data, options):
    """Records of all seeds."""
    training, test, vocabulary = data.training, data.test, data.vocabulary
    real = np.arange(test.tokens.shape[1]) < test.lengths[:, None]
    print(f"{len(training.types)} training and {len(test.types)} test questions of {len(data.names)} types")
    unknown = np.mean(test.tokens[real] == UNKNOWN)
    print(f"{len(vocabulary.numbers)} known words and marks; {unknown:.1%} of the test tokens are unknown")
    frequent = np.bincount(training.types).argmax()
    print(
        f"{data.names[frequent]}, the most frequent type, is right for {np.mean(test.types == frequent):.1%} of tests\n"
    )
    records = []
    for seed in range(options.seed, options.seed + options.seeds):
        start = time.perf_counter()
        model = AttentionClassifier(
            len(vocabulary),
            len(data.names),
            n_positions=0 if options.no_positions else int(training.lengths.max()),
            dimension=options.dimension,
            rank=options.rank,
            skip=options.skip,
            seed=seed,
        )
        record = train(
            model,
            training,
            test,
            n_epochs=options.epochs,
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            seed=seed,
        )
        records.append(record)
        seconds = time.perf_counter() - start
        print(f"seed {seed}: test accuracy {record.test_accuracy[-1]:.3f} ({seconds:.0f} s)", flush=True)
    return records


def tabulate(records):
    """Print means over the seeds, and when the layers settle."""
    epochs = records[0].epochs
    means = np.mean([record.similarity for record in records], axis=0)
    training = np.mean([record.training_accuracy for record in records], axis=0)
    test = np.mean([record.test_accuracy for record in records], axis=0)
    layers = range(1, means.shape[1] + 1)
    print(f"\n{'':8}  similarity with the final S{'accuracy':>20}")
    print(f"{'epoch':>8}" + "".join(f"{f'layer {layer}':>13}" for layer in layers) + f"{'training':>15}{'test':>8}")
    for k, epoch in enumerate(epochs):
        if epoch <= 5 or epoch % 5 == 0 or k == len(epochs) - 1:
            cells = "".join(f"{value:13.4f}" for value in means[k])
            print(f"{epoch:8.2f}{cells}{training[k]:15.3f}{test[k]:8.3f}")
    print("\nepochs until the similarity has gone a part of its way for good, mean over the seeds")
    for level in SETTLED:
        cells = "".join(f"{value:13.2f}" for value in np.mean([record.settling(level) for record in records], axis=0))
        print(f"{level:>8.0%}{cells}")


def draw(records, skip, path):
    """Similarities with the final interactions, and accuracies, against the epochs."""
    from matplotlib.figure import Figure

    with figure_style():
        fig = Figure(figsize=(6.8, 6), layout="constrained")
        upper, lower = fig.subplots(2, 1, sharex=True, height_ratios=(1.5, 1))
        draw_similarities(upper, records, skip)
        draw_accuracies(lower, records)
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, dpi=120)


def draw_mean(ax, records, curves, **style):
    """One thin line a seed, and their mean."""
    epochs = records[0].epochs
    if len(records) > 1:
        ax.plot(epochs, np.transpose(curves), color=style["color"], lw=0.8, alpha=0.35)
    ax.plot(epochs, np.mean(curves, axis=0), lw=2, **style)


def draw_similarities(ax, records, skip):
    similarities = np.array([record.similarity for record in records])
    for layer, (colour, ls) in enumerate(zip(COLOURS, ("-", (0, (5, 2))), strict=True)):
        draw_mean(ax, records, similarities[:, :, layer], color=colour, ls=ls, label=f"layer {layer + 1}")
    # the first epoch in full, the others closer and closer
    ax.set_xscale("symlog", linthresh=1)
    ax.set(xlim=(0, records[0].epochs[-1]), ylim=(None, 1.02), ylabel="similarity of $S_\\ell$ with its final value")
    seeds = f"{len(records)} seeds and their mean" if len(records) > 1 else "one seed"
    ax.set_title(f"Two tied attention layers on question types, $c = {skip:g}$, {seeds}", loc="left")
    ax.legend(loc="lower right")


def draw_accuracies(ax, records):
    draw_mean(ax, records, [record.training_accuracy for record in records], color="0.5", ls="-", label="training")
    draw_mean(ax, records, [record.test_accuracy for record in records], color="black", ls="-", label="test")
    ticks = [tick for tick in (0, 0.5, 1, 2, 5, 10, 20, 40, 100, 200) if tick <= records[0].epochs[-1]]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set(ylim=(0, 1.02), xlabel="epochs", ylabel="accuracy")
    ax.legend(loc="lower right")


def positive(kind):
    """A parser of positive numbers of a kind, int or float."""

    def parse(text):
        value = kind(text)
        if not 0 < value < np.inf:
            raise argparse.ArgumentTypeError(f"{text} is not positive")
        return value

    parse.__name__ = kind.__name__
    return parse


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help=f"holds {TRAINING_FILE} and {TEST_FILE}")
    parser.add_argument("--output", type=Path, default=Path("trec_question_types.png"))
    parser.add_argument("--no-figure", action="store_true", help="print the table only")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seeds", type=positive(int), default=1, help="runs, averaged (default 1)")
    parser.add_argument("--epochs", type=positive(int), default=40, help="default 40")
    parser.add_argument("--batch-size", type=positive(int), default=32, help="default 32")
    parser.add_argument("--learning-rate", type=positive(float), default=1e-3, help="of AdamW (default 0.001)")
    parser.add_argument("--dimension", type=positive(int), default=128, help="d, of the embeddings (default 128)")
    parser.add_argument("--rank", type=positive(int), default=64, help="r, of the layers (default 64)")
    parser.add_argument("--no-positions", action="store_true", help="tokens alone, whatever their order")
    parser.add_argument("--skip", type=float, default=0.0, help="c, of the skip connections (default 0)")
    options = parser.parse_args(arguments)
    if options.seed < 0 or not 0 <= options.skip < np.inf:
        parser.error("--seed and --skip must not be negative")
    try:
        require_torch()
        data = load(options.directory)
    except (ModuleNotFoundError, OSError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    try:
        records = run(data, options)
    except FloatingPointError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    tabulate(records)
    if options.no_figure:
        return
    try:
        draw(records, options.skip, options.output)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print('\nNo figure, since matplotlib is missing: pip install "sklearn-aim[plot]"')
    else:
        print(f"\nfigure: {options.output}")


if __name__ == "__main__":
    main()

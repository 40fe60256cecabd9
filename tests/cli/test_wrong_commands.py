"""What a user gets for wrong arguments of the commands beside a run: one message, and no file changes."""

from pathlib import Path

import pytest
from refusing import holds

FILES = {
    "there.yaml": "mine",
    "mine/config.yaml": "mine",
    "file": "",
    "two.csv": "a,b\n1,2\n",
    "age.csv": "age,b\n1,2\n",
    "formula.csv": "=cmd(),b\n1,2\n",
    "semicolons.csv": "a;b\n1;2\n",
    "texts.csv": "a\nx\n",
}
WRONG = """
fitt --config adafed_mnist => 2 => There is no command 'fitt'. Did you mean fit? Commands: fit, validate
fit --no_such => 2 => no_such
fit --help AdaFeed => 1 => There is no class 'AdaFeed'. Did you mean AdaFed ... fl-lightning fit --config FILE --print_config.
fit --help nowhere.Class => 1 => There is no class 'nowhere.Class'.
algorithms fedbm => 1 => No algorithm matches 'fedbm'. Did you mean FedBN
algorithms a b => 2 => usage
configs show fednov => 1 => There is no configuration 'fednov'
configs copy iid => 1 => Did you mean data/iid?
configs copy data/iid there.yaml => 1 => 'there.yaml' already exists and was not changed. Name another file.
configs copy data/iid no/folder.yaml => 1 => Cannot write 'no/folder.yaml'
configs sho => 2 => 'configs' has no action 'sho' with 0 arguments. Did you mean show?
configs fednova => 2 => Did you mean show fednova_mnist
configs show => 2 => 'configs' has no action 'show' with 0 arguments. usage: fl-lightning configs
dashboard => 2 => 'dashboard' is gone. In W&B, group a project's runs by config.federation.strategy.class_path
init => 2 => fl-lightning init: error: the following arguments are required: folder. All settings: fl-lightning init --help.
init one two => 2 => error
init mine => 1 => fl-lightning: error: 'mine' is not empty. Choose a new or empty folder.
init file => 1 => Cannot write 'file' (... Choose a new or empty folder.
init file/below => 1 => Cannot write 'file/below' (... Choose a new or empty folder.
init 3d => 1 => '3d' cannot be the name of a Python package
init class => 1 => 'class' cannot be the name of a Python package
init größe => 1 => cannot be the name of a Python package
init torch => 1 => 'torch' is the name of another package. Choose another name, such as 'my_torch'
init tests => 1 => 'tests' is the name of another package
schema --from two.csv --target c => 1 => 'two.csv' has no column 'c'. Its columns are a, b.
schema --from age.csv --target Age => 1 => 'age.csv' has no column 'Age'. Did you mean age?
schema --from formula.csv => 1 => No schema can be proposed for 'formula.csv': Field 1, 'name': a spreadsheet would run the name
schema --from two.csv --csv {"encoding":"none"} => 1 => Cannot read 'two.csv' as a CSV file in NONE ... or state its encoding
schema --from two.csv --csv { => 1 => '--csv' is not YAML
schema --from semicolons.csv => 1 => 'semicolons.csv' is one column, 'a;b'. If the file
schema --from age.csv --ranges => 2 => error: unrecognized arguments: --ranges. All settings: fl-lightning schema --help.
schema --from none.csv => 1 => 'none.csv' is not a file. Set '--from' to a table.
schema --from two.csv --output none/x.yaml => 1 => Cannot write 'none/x.yaml'
schema --from two.csv --output there.yaml => 1 => 'there.yaml' already exists and was not changed. Name another file.
schema --from texts.csv => 1 => No column of 'texts.csv' can be a feature. 'a' is left out: all its values are equal texts.
"""


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [pytest.param(*row.split(" => "), id=row.partition(" => ")[0]) for row in WRONG.strip().splitlines()],
)
def test_wrong_arguments_end_in_one_message(arguments, status, words, typed):
    Path("mine").mkdir()
    for name, text in FILES.items():
        Path(name).write_text(text)
    ended, said = typed(*arguments.split())
    assert str(ended) == status
    assert holds(said, words), said
    assert "Traceback" not in said
    assert {str(path): path.read_text() for path in Path().rglob("*") if path.is_file()} == FILES

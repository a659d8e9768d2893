"""The files of the data folder: their checksums, and where the public can get them.

The folder has one sub-folder per data set. Where a public file differs from the layout's (another
compression, no line of column names) both checksums are listed, or a conversion makes one from the other.
"""

from __future__ import annotations

from tacit.data import download
from tacit.data.files import DataFile, Source

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_UCI = "https://archive.ics.uci.edu/"


def _mnist(name: str, layout: str, public: str) -> DataFile:
    return DataFile(f"mnist/{name}", (layout, public), Source(_MNIST + name, public))


MNIST_TRAIN_IMAGES = _mnist(
    "train-images-idx3-ubyte.gz",
    "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
)
MNIST_TRAIN_LABELS = _mnist(
    "train-labels-idx1-ubyte.gz",
    "1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
)
MNIST_TEST_IMAGES = _mnist(
    "t10k-images-idx3-ubyte.gz",
    "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
)
MNIST_TEST_LABELS = _mnist(
    "t10k-labels-idx1-ubyte.gz",
    "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)

CIFAR10 = DataFile(
    "cifar10/cifar10.npz",
    ("dc846c82f3d66fb06f93a27eb4663590a3a158cf88c20928850162e89ed9b58d",),
    Source(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        download.cifar10,
    ),
    arrays="b894dc0d338456d77ff200a0ac6ea25665e01b1dbc9d9c04fa5ccfa882e0e866",
)

ADULT_DATA = DataFile(
    "adult/adult.data",
    ("a5b3a620cb7325a48f5090531afd611ce4622440451a5cfbd11c49be2ed868e5",),
    Source(
        _UCI + "ml/machine-learning-databases/adult/adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        download.adult_data,
    ),
)
ADULT_TEST = DataFile(
    "adult/adult.test",
    ("0543912af15c52ba12336b042c8f9f96541d6134d9b3d48dba647281fb2b39d1",),
    Source(
        _UCI + "ml/machine-learning-databases/adult/adult.test",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        download.adult_test,
    ),
)

ACS_INCOME = DataFile(
    "acs_income/acs_income_ca_2018_sample.csv",
    ("bde56fe5ba1453123be17c5a5207957d673d4866c91d2fd9e0ea0408d11b55ba",),
    how=(
        "To make one like it: pip install folktables; take ACSDataSource(survey_year='2018', "
        "horizon='1-Year', survey='person').get_data(states=['CA'], download=True); apply "
        "folktables.adult_filter; write the columns AGEP, COW, SCHL, MAR, OCCP, POBP, RELP, WKHP, SEX, "
        "RAC1P and PINCP > 50000 (True or False) as csv, a sample if you like; and load it with verify=False."
    ),
)

CREDIT_CARD = DataFile(
    "credit_card/default_of_credit_card_clients.csv",
    (
        "78d4eb02af7dcc9671959e2cdf9e1afb6478fdd13d0127937f37969bf6e290b1",
        "b7d5b6619d491c3e24b72f1dec9cd1fa856fa4e47e44170c14cffad815f9a233",
    ),
    Source(
        _UCI + "static/public/350/data.csv",
        "45bcf4df62ff2e237a74eb155cabfb4bbbc171219a0637daef44fdad07503dd0",
        download.credit_card,
    ),
)

CALIFORNIA_HOUSING = DataFile(
    "california_housing/cal_housing.data",
    (
        "d3d8a1a722ae78f91134862727d27a70b1415e7d512a89140406248687f4b902",
        "23a7eecd83e5d57857691849577cdf9318097411a88e59c3c6e1fd79f62ba266",
    ),
    Source(
        "https://ndownloader.figshare.com/files/5976036",
        "aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",
        download.california_housing,
    ),
)

INSURANCE = DataFile(
    "insurance/insurance.csv",
    ("505c1cbc2e63d0363bac59501563df2530aadf4cdb9cfee226f4ef32f5468281",),
    Source(
        "https://raw.githubusercontent.com/stedy/Machine-Learning-with-R-datasets/"
        "9a8371e95098f3048c5540646b9fb96c7571b110/insurance.csv",
        "505c1cbc2e63d0363bac59501563df2530aadf4cdb9cfee226f4ef32f5468281",
    ),
)

LAYOUT = (
    MNIST_TRAIN_IMAGES,
    MNIST_TRAIN_LABELS,
    MNIST_TEST_IMAGES,
    MNIST_TEST_LABELS,
    CIFAR10,
    ADULT_DATA,
    ADULT_TEST,
    ACS_INCOME,
    CREDIT_CARD,
    CALIFORNIA_HOUSING,
    INSURANCE,
)

"""Which letters behind a value are its unit, and when a unit may be missing."""

import pytest


@pytest.mark.parametrize(
    ("solution", "right", "wrong"),
    [
        # one side may lack the unit
        ("72", ["72 clips", "**72 clips**", r"\boxed{72 \text{ clips}}", "72个"], ["71 clips", "72 dozen"]),
        ("3", ["3 clips"], ["3 million", "3k"]),
        ("18", ["18 dollars", "18 dollars per day", r"\$18", "18元"], ["18 or more", "18 halves", "18 is wrong"]),
        ("60", ["60 km/h", "60 cm²", r"60\text{ cm}^2", "60 mph", "60kg"], ["60 times", "60abc", "60x"]),
        (r"10\text{ cm}", ["10", "10.0 cm"], ["10 m", "1"]),
        (r"\frac{3}{4} \text{ hours}", [r"\frac{3}{4}", "0.75 h"], ["0.75 min"]),
        ("5 m", ["5 m"], ["5 s", "5"]),
        (r"50\%", ["50%", "50 percent", "50"], ["50 cm"]),
        (r"45.6\%", ["45.6", "0.456"], ["456"]),
        ("5", ["5 mol"], ["5 elevenths", "5 scores", "5 roots", "5 am"]),
        ("3 kilometers per hour", ["3 km/h"], ["3 m/s"]),
        ("3", [], ["v = 3 t", "3 t"]),
        ("0.2", [r"x = 20\%", "x = 0.2"], [r"x = 2\%"]),
        ("5", ["5 months"], ["5 divided by two", "5 twelfths", "5 below zero", "5 couples", "5 excluded", "5 short"]),
        ("5", ["5个", "5米", "5平方米", "5 square inches"], ["5万", "5 亿", "5以上", "5分之一"]),
        ("5", [], ["5 point five", "5 K", "5的平方"]),
        (r"\frac{2A}{h}", ["2A/h"], ["2h/A"]),
        # letters that may be variables
        ("5m", ["5 m", "5m"], ["5"]),
        ("2abc", ["2acb", "2 a b c"], ["2", "2ab"]),
        (r"\frac{3mg}{2}", [r"\frac{3}{2}mg", "3mg/2", "1.5 m g"], [r"\frac{3}{2}", r"\frac{3}{2} kg"]),
        (r"\frac{3}{2}nRT", [r"\frac{3nRT}{2}", "3/2 nRT"], [r"\frac{3}{2}RT"]),
        (r"\frac{1}{6}abc", [r"\frac{abc}{6}", "abc/6"], [r"\frac{1}{6}ab", r"\frac16"]),
        (r"V = \frac{1}{6}abc", [r"V = \frac{abc}{6}"], [r"V = \frac{abc}{3}"]),
        (r"\frac{1}{2}mgh", [r"\frac{mgh}{2}", "½mgh"], [r"\frac{mg}{2}"]),
        ("a^3+b^3+c^3-3abc", ["(a+b+c)(a^2+b^2+c^2-ab-bc-ca)"], ["a^3+b^3+c^3"]),
        ("6bca^2", ["6a^2bc"], ["6abc"]),
        ("u^2+2as", ["2as+u^2", "u² + 2as"], ["u^2+2at"]),
        ("3abc-2", ["-2+3abc"], ["3abc+2"]),
        (r"\frac{1}{bc}+\frac{1}{ca}+\frac{1}{ab}", [r"\frac{a+b+c}{abc}"], [r"\frac{a+b}{abc}"]),
        # names of one unit
        ("5 cm", ["5 centimeters", "5 centimetre"], ["5 millimeters"]),
        ("5 minutes", ["5 min", "5.0 mins"], ["5 h"]),
        ("5 hours", ["5 hrs", "5 h"], ["5 s"]),
        ("3 apples", ["3 apple"], ["3 pears"]),
        ("5 ms", ["5.0 ms"], ["5.0 m"]),
    ],
)
def test_units_are_told_from_variables(assert_scores, solution, right, wrong):
    assert_scores(solution, right, wrong)

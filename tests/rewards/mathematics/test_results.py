"""Where in an answer or a worked solution its result is."""

import pytest


@pytest.mark.parametrize(
    ("solution", "right", "wrong"),
    [
        # what "the answer is" says, in either of the two
        ("48/2=24.\n#### 72\nThe answer is: 72", ["72", r"\boxed{72}", "The answer is 72.", "#### 72"], ["24", "7272"]),
        ("So 48+24=72 clips.\nThe answer is: 72", ["72"], ["24"]),
        ("Rationale: it is left.\nAnswer: 72", ["72"], ["left"]),
        ("72", ["Step 1: 48/2 = 24 clips.\nStep 2: 48 + 24 = 72.\n\nTherefore, the answer is 72."], []),
        ("72", ["May: $48/2=24$\n\n**Answer:** 72", "Final answer: **72**", "The answer is:\n72"], ["Answer: 24\n72"]),
        ("72", ["答案是72", "答案为 $72$", "**答案：** 72", "答：72", "最终答案是：72", "故答案为：72"], ["答案是24"]),
        ("C", ["答案：C", "Option C", "The answer is C.", "The answer is option C"], ["Option B"]),
        ("5", ["The answer is 4. No, the answer is 5."], ["The answer is not 5"]),
        ("4", [], ["The answer is 4. No, the answer is 5."]),
        # a sentence
        ("10", ["The value of x is 10.", "The length of BC is 10 cm."], ["x is 10, y is 5"]),
        ("3", ["There are 3."], ["if x is 3"]),
        (r"\boxed{\frac{3}{8}}", [r"The probability is $\frac{3}{8}$."], [r"It is not $\frac{3}{8}$"]),
        ("2,3", [r"The roots are $\boxed{2}$ and $\boxed{3}$."], [r"\boxed{2}, but correct is \boxed{3}"]),
        ("7", ["So, $x = 7$.", "So 7"], ["So, $x = 8$."]),
        ("2, 3", ["The roots are 2 and 3."], ["The roots are 2 and 4."]),
        ("72", ["72\n\nExplanation: 48 + 24"], ["24\n\nExplanation: 48 + 24 = 72"]),
        # Markdown
        ("5", ["**$x_1 = 5$**", "**$S_{ABC} = 5$**", "***5***", "__5__"], ["**$x_1 = 6$**"]),
        (r"\log_2 3", [r"**$\log_2 3$**"], [r"**$\log_3 2$**"]),
        ("24", ["2*3*4"], ["234"]),
        # worked solutions without a word
        (r"$2x=24$, $x=\boxed{12}$.", ["12"], ["24"]),
        ("2x = 24\nx = 12\n\\boxed{12}", ["12"], ["24"]),
        ("\\[2x=24\\]\n\\[x=\\boxed{12}\\]", ["12"], ["24"]),
        (r"\begin{align*} x &= 3\cdot 4 \\ &= \boxed{12} \end{align*}", ["12"], ["3"]),
        ("∵ 2x=24 ∴ x=\\boxed{12}", ["12"], ["24"]),
        (r"$x+y=5$, $x-y=-1$, $(x,y)=\boxed{(2,3)}$", ["(2,3)"], ["(3,2)"]),
        (r"(2, \boxed{3})", ["(2,3)"], ["3"]),
        ("10", [r"Solution: a=3, b=4. \boxed{10}", r"For a=1, b=2: \boxed{10}"], [r"x = 1, \boxed{10}"]),
        (r"Solution: a=3, b=4. \boxed{10}", ["10"], ["4"]),
        # what is no statement of it
        ("10", ["10\n\nBecause it fits."], ["10\nis wrong", "10\n\nNo, it is 100.", "10\nOr 100", "10\nmillion"]),
        ("10", ["The value of x is 10"], ["The square of x is 10", "Twice the answer is 10", "Suppose x is 10"]),
        ("10", ["So the total cost is 10."], ["The error is 10", "Nothing is 10", "John says the answer is 10"]),
        (r"Hence we get $\boxed 9$.", ["9", r"\boxed 9"], ["8"]),
        # units behind a box in a sentence
        (r"The length is $\boxed{5}\text{ cm}$.", ["5 cm", "5"], ["5 m"]),
        (r"The length is $\boxed{5}\,\text{cm}$.", ["5 cm"], ["5 m"]),
        (r"The length is $\boxed{12}$ meters.", ["12 m", "12"], ["12 cm", "12 kg"]),
        ("12 cm", [r"It is \boxed{12} centimeters long."], [r"It is $\boxed{12}$ meters.", "共有 $\\boxed{12}$ 米。"]),
        (r"\text{Area} = 12", ["Area = 12", "12"], ["Volume = 12"]),
        ("24 cm^2", ["24 square centimeters"], ["24 cubic centimeters"]),
        ("12%", [r"It is \boxed{12} percent."], [r"It is \boxed{13} percent."]),
        # a box that is a part of its expression
        ("5", [], [r"We get $x = -\boxed{5}$.", r"It costs \boxed{5} thousand dollars.", r"It is minus \boxed{5}."]),
        ("5", [], ["一共 \\boxed{5} 万元。", r"It is $\boxed{5} \pi$ square units.", r"It is $3 + \boxed{5}$."]),
        ("5", [r"\boxed{5} to 1 decimal place.", r"**Answer** - $\boxed{5}$", r"\boxed{5}\n- since it fits"], []),
        ("5", [r"$\boxed{5}$. Hence the final answer is correct.", r"So $2x+y = \boxed{5}$."], []),
        ("12", [r"It is \boxed{12} m in total.", r"$\boxed{12}$ square centimeters."], [r"$\boxed{12}\pi$"]),
        (r"12\pi", [r"The length is $\boxed{12}\pi$.", r"$\boxed{12}\pi$"], ["12"]),
        ("12", [r"Thus \boxed{12} was found."], [r"The answer is $\boxed{12}\pi$."]),
        (r"9\pi", [r"The area of the circle is $\pi r^2 = \boxed{9\pi}$ square inches."], []),
        ("12 degrees", [r"so $x = \boxed{12}$ degrees."], [r"so $x = \boxed{13}$ degrees."]),
        ("1, 2", [r"$x_1=\boxed{1}$, $x_2=\boxed{2}$"], [r"not \boxed{1} and \boxed{2}"]),
        # a heading, and what is only supposed
        ("7", ["### Final Answer\n7", "**Final Answer**\n\n$$7$$"], ["The answer is 12. First we get 7"]),
        ("7", ["The answer should be 7.", "答案是 $\\boxed{7}$ 。谢谢", r"Therefore, $|a-b| = \boxed{7}$."], []),
        ("12", [r"The length is $\boxed{12}$ m."], [r"The length is $\boxed{13}$ m."]),
        ("45°", [r"The angle is $\boxed{45}^\circ$."], [r"The angle is $\boxed{46}^\circ$."]),
        ("6", ["$a = \\boxed{3}$\n$2a = \\boxed{6}$"], ["1. $\\boxed{3}$\n2. $\\boxed{6}$"]),
        (r"$\boxed{3} \Rightarrow \boxed{6}$", ["6"], ["3"]),
        ("12 cm", [r"Hence $\boxed{12 \text{ cm}}$ points to the solution."], []),
        ("12 cm", [r"So we see that $\boxed{12 cm}$ works.", r"Hence $\boxed{12}$ cm satisfies it."], []),
        ("7", ["I think the answer is 7."], ["If x = 3, the answer is 7", "错误的答案是7"]),
        ("7", ["Answer: 7\n\nExplanation: 3 + 4 = 7"], ["Answer: 7\nHence, x = 12.", "The value of x minus 1 is 7"]),
        ("12", [r"\boxed{7}? No, the answer is 12."], [r"\boxed{12}? No, the answer is 7."]),
        ("### Solution\nIt is 7.\n#### Answer\n7", ["7"], []),
        ("2, 3", ["答案:x=2或x=3", "答案是2和3"], ["答案是2"]),
        # several boxes are one result where no words are between them
        ("3, 4", [r"\boxed{3} \text{ or } \boxed{4}", r"\boxed{3} \quad \boxed{4}"], ["4"]),
        ("3, 4", [r"$\boxed{3}$和$\boxed{4}$"], [r"\boxed{34}"]),
        ("3, 4", [r"$x_1 = \boxed{3}, x_2 = \boxed{4}$", r"$x_1 = \boxed{3}$ and $x_2 = \boxed{4}$"], []),
        ("(1) 3; (2) 4", [r"(1) \boxed{3}; (2) \boxed{4}"], ["4"]),
        (r"\frac{3}{4}", [r"$\frac{\boxed{3}}{\boxed{4}}$"], [r"\boxed{3}", "4"]),
        (r"The area is $\boxed{25\pi}\text{ cm}^2$.", [r"25\pi cm^2"], ["25 cm^2"]),
    ],
)
def test_the_result_is_found(assert_scores, solution, right, wrong):
    assert_scores(solution, right, wrong)

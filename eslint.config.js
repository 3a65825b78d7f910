// The rules of the page's scripts: names that exist, variables that are used, equality without surprises.
import js from "@eslint/js";
import globals from "globals";

const rules = {
  ...js.configs.recommended.rules,
  eqeqeq: ["error", "always"],
  "no-var": "error",
  "prefer-const": ["error", { destructuring: "all" }],
  "no-shadow": "off",
  "no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_", caughtErrors: "none" }],
};

export default [
  {
    files: ["src/sonde/view/assets/*/*.js"],
    languageOptions: { ecmaVersion: 2023, sourceType: "module", globals: { ...globals.browser, theme: "readonly" } },
    rules,
  },
];

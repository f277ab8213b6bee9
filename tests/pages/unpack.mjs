// Unpacks the browser into the folder of TMPDIR, with its libraries: so it brings them where there are none.
process.env.AWS_EXECUTION_ENV = "AWS_Lambda_nodejs22.x"; // what the package takes for a sign that there are none
const { default: chromium } = await import("@sparticuz/chromium");
console.log(await chromium.executablePath());

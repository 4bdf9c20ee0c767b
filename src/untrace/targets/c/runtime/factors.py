"""Factors of matrices and what is solved with them, as texts of C for each type of float; see `helpers`."""

FACTORS = {
    "cholesky": """
/* The lower factor of a symmetric matrix, which stays as it is above its diagonal; NaN where there is no factor. */
static void cholesky_S(int n, const T *a, T *l)
{
    bool fails = false;
    for (int j = 0; j < n; j++) {
        double d = a[j * n + j];
        for (int k = 0; k < j; k++) {
            d -= (double)l[j * n + k] * (double)l[j * n + k];
        }
        fails = fails || !(d > 0);
        d = fails ? (double)NAN : sqrt(d);
        for (int i = 0; i < n; i++) {
            double s = a[i * n + j];
            for (int k = 0; k < j && i > j; k++) {
                s -= (double)l[i * n + k] * (double)l[j * n + k];
            }
            l[i * n + j] = (T)(i < j ? s : i == j ? d : s / d);
        }
    }
    for (int i = 0; i < n * n && fails; i++) {
        l[i] = (T)NAN;
    }
}
""",
    "qr": """
/* Factors of a matrix of m rows, by Householder's reflections: a becomes the upper one, q has its own columns. */
static void qr_S(int m, int n, int columns, T *a, T *q)
{
    const int count = m < n ? m : n;
    for (int i = 0; i < m * columns; i++) {
        q[i] = i / columns == i % columns ? (T)1 : (T)0;
    }
    for (int k = 0; k < count; k++) { /* below the diagonal stand the reflections, whose first number is 1 */
        double rest = 0;
        for (int i = k + 1; i < m; i++) {
            rest += (double)a[i * n + k] * (double)a[i * n + k];
        }
        const T first = a[k * n + k];
        const T size = (T)-copysign(sqrt((double)first * (double)first + rest), (double)first);
        if (rest == 0) {
            continue;
        }
        for (int i = k + 1; i < m; i++) {
            a[i * n + k] /= first - size;
        }
        a[k * n + k] = size;
        for (int j = k + 1; j < n; j++) {
            T along = a[k * n + j];
            for (int i = k + 1; i < m; i++) {
                along += a[i * n + k] * a[i * n + j];
            }
            along *= (size - first) / size;
            a[k * n + j] -= along;
            for (int i = k + 1; i < m; i++) {
                a[i * n + j] -= along * a[i * n + k];
            }
        }
    }
    for (int k = count - 1; k >= 0; k--) {
        T length = 1;
        for (int i = k + 1; i < m; i++) {
            length += a[i * n + k] * a[i * n + k];
        }
        for (int j = k; j < columns && !(length <= 1); j++) {
            T along = q[k * columns + j];
            for (int i = k + 1; i < m; i++) {
                along += a[i * n + k] * q[i * columns + j];
            }
            along *= 2 / length;
            q[k * columns + j] -= along;
            for (int i = k + 1; i < m; i++) {
                q[i * columns + j] -= along * a[i * n + k];
            }
        }
        for (int i = k + 1; i < m; i++) {
            a[i * n + k] = 0;
        }
    }
}
""",
    "solve_triangular": """
/* Solves a x = b, or its transpose, in place: x is b at first, of m columns. */
static void solve_triangular_S(int n, int m, const T *a, bool lower, bool transposed, bool unit, T *x)
{
    const bool forwards = lower != transposed;
    for (int step = 0; step < n; step++) {
        const int i = forwards ? step : n - 1 - step;
        for (int k = forwards ? 0 : i + 1; k < (forwards ? i : n); k++) {
            const T f = transposed ? a[k * n + i] : a[i * n + k];
            for (int j = 0; j < m; j++) {
                x[i * m + j] -= f * x[k * m + j];
            }
        }
        for (int j = 0; j < m && !unit; j++) {
            x[i * m + j] /= a[i * n + i];
        }
    }
}
""",
    "lu": """
/* The factors of a matrix in its own place, with the rows that were exchanged, and the order of the rows. */
static void lu_S(int n, T *a, int32_t *pivots, int32_t *order)
{
    for (int i = 0; i < n; i++) {
        order[i] = i;
    }
    for (int k = 0; k < n; k++) {
        int p = k;
        double most = fabs((double)a[k * n + k]);
        for (int i = k + 1; i < n; i++) {
            const double size = fabs((double)a[i * n + k]);
            p = size > most ? i : p;
            most = size > most ? size : most;
        }
        pivots[k] = p;
        if (p != k) {
            const int32_t row = order[k];
            order[k] = order[p];
            order[p] = row;
            for (int j = 0; j < n; j++) {
                const T t = a[k * n + j];
                a[k * n + j] = a[p * n + j];
                a[p * n + j] = t;
            }
        }
        const T pivot = a[k * n + k];
        for (int i = k + 1; i < n && pivot != 0; i++) {
            const T factor = a[i * n + k] / pivot;
            a[i * n + k] = factor;
            for (int j = k + 1; j < n; j++) {
                a[i * n + j] -= factor * a[k * n + j];
            }
        }
    }
}
""",
}
